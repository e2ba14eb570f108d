"""Values of arguments, by kind, and how a question writes them."""

from __future__ import annotations

import json
import random

__all__ = ["draw", "schema", "written"]

_POOLS = {
    "city": "Lisbon,Porto,Madrid,Seville,Lyon,Nice,Ghent,Oslo,Bergen,Turku,Riga,Gdansk,Prague,Graz,Turin,Naples,Athens,"
    "Izmir,Cairo,Tunis,Nairobi,Accra,Durban,Mumbai,Pune,Hanoi,Osaka,Kyoto,Busan,Perth,Hobart,Auckland,Denver,Austin,"
    "Portland,Memphis,Tampa,Chicago,Detroit,San Jose,Los Angeles,Salt Lake City,New Orleans,Quebec,Calgary,Lima,Quito,"
    "Bogota,Santiago,Recife,Kansas City,Mexico City,Buenos Aires,Cape Town",
    "country": "Portugal,Spain,Norway,Finland,Latvia,Poland,Austria,Greece,Turkey,Egypt,Kenya,Ghana,India,"
    "Vietnam,Japan,"
    "South Korea,Australia,New Zealand,Canada,Peru,Chile,Brazil,Mexico,Argentina,Iceland,Nepal,Morocco,Ireland,"
    "Thailand",
    "company": "Acme,Nokia,Siemens,Toyota,Adobe,Intel,Walmart,Costco,Target,Nestle,Bosch,Philips,Sony,Honda,"
    "Shell,Oracle,"
    "Best Buy,Home Depot,Pfizer,Boeing,Netflix,Spotify,Airbus,Lufthansa",
    "currency": "USD,EUR,GBP,JPY,CHF,CAD,AUD,SEK,INR,MXN",
    "person": "Anna Berg,Tom Hill,Maria Lopez,David Chen,Nina Simone,Paul Klee,Frida Kahlo,Bob Marley,Ella Fitzgerald,"
    "John Smith,Sara Novak,Peter Gabriel,Claude Monet,Stephen Curry,Serena Williams,Roger Federer,Diana Ross,"
    "Emma Stone",
    "team": "Chicago Bulls,Boston Red Sox,Toronto Raptors,Dallas Stars,Seattle Storm,Denver Nuggets,Ajax,"
    "Benfica,Arsenal,"
    "Miami Heat,Green Bay Packers,Real Madrid,Juventus,Porto FC",
    "animal": "wolf,red fox,barn owl,salmon,moose,honey bee,sea otter,lynx,beaver,tree frog",
    "gene": "TP53,EGFR,MYC,KRAS,APOE,CFTR,FOXP2,SOX9,PTEN,HBB",
    "chemical": "H2O,CO2,NaCl,CH4,NH3,C6H12O6,HCl,CaCO3,H2SO4,O2",
    "cuisine": "Italian,Thai,Indian,Mexican,Greek,Japanese,French,Korean,Lebanese,Turkish",
    "ingredient": "chicken,rice,tofu,salmon,lentils,spinach,potato,banana,apple,almonds,cheddar cheese,"
    "brown bread,oats",
    "sportname": "running,swimming,cycling,rowing,yoga,hiking,tennis,dancing",
    "song": "Yesterday,Purple Rain,Blue Moon,Hallelujah,Imagine,Summertime,Let It Be,Fast Car,Halo",
    "note": "C,D,E,F,G,A,B",
    "genre": "jazz,rock,folk,classical,blues,techno,country",
    "film": "Casablanca,Jaws,Alien,Amelie,The Matrix,Toy Story,Dune,Emma,Ulysses,The Hobbit,Brave New World,"
    "Middlemarch",
    "event": "moon landing,French Revolution,fall of Constantinople,signing of Magna Carta,Battle of Hastings,"
    "opening of the Suez Canal,Boston Tea Party,first Olympic Games",
    "language": "French,German,Spanish,Italian,Polish,Japanese,Swahili,Greek,Korean",
    "phrase": "Good morning,How are you?,The train is late,I love this place,Where is the station?,Thank you very much,"
    "See you tomorrow,This is not what I wanted",
    "word": "happy,quick,ancient,brave,quiet,bright,cold,clever,huge",
    "meeting": "Team meeting,Dentist,Project review,Lunch with Kim,Budget plan,Yoga class,Parents evening,"
    "Quarterly report",
    "room": "kitchen,bedroom,living room,bathroom,garage,office,hall",
    "product": "laptops,headphones,coffee mugs,notebooks,desk lamps,running shoes,phone cases,batteries,office chairs",
    "hand": "full house,flush,straight,pair,royal flush,three of a kind",
    "planet": "Mercury,Venus,Mars,Jupiter,Saturn,Uranus,Neptune,Earth",
    "museum": "Louvre,Prado,Tate Modern,Uffizi,Rijksmuseum,Hermitage",
    "table": "orders,customers,invoices,students,employees,flights,sales_2023",
}  # fmt: skip
_LISTS = {kind: text.split(",") for kind, text in _POOLS.items()}
_CLOCKS = ("09:00", "10:30", "12:15", "14:00", "16:45", "18:30", "20:00")


def draw(kind: str, rng: random.Random) -> object:
    """Return a value of a kind."""
    if kind.startswith("choice("):
        return rng.choice(kind[7:-1].split(","))
    match kind:
        case "int":
            return rng.choice(
                (rng.randint(2, 12), rng.randint(2, 100), rng.randint(1, 100) * 5, rng.randint(100, 2000))
            )
        case "money":
            return rng.choice((rng.randint(1, 20) * 1000, rng.randint(1, 99) * 100, rng.randint(10, 999)))
        case "float":
            return rng.choice((round(rng.uniform(0, 10), 1), round(rng.uniform(0, 1), 2), float(rng.randint(1, 50))))
        case "pair":
            return [rng.randint(-9, 20), rng.randint(-9, 20)]
        case "ints":
            return [rng.randint(1, 60) for _ in range(rng.randint(3, 5))]
        case "bool":
            return True
        case "year":
            return rng.randint(1950, 2024)
        case "date":
            return f"{rng.randint(2020, 2025)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
        case "clock":
            return rng.choice(_CLOCKS)
        case "code":
            return f"{rng.choice('ABCX')}{rng.choice('DEFN')}-{rng.randint(100, 9999)}"
        case _:
            return rng.choice(_LISTS[kind])


def written(value: object) -> str:
    """Return a value as a question has it."""
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value) if isinstance(value, list) else str(value)


def schema(kind: str) -> dict[str, object]:
    """Return the JSON Schema of a kind."""
    if kind.startswith("choice("):
        return {"type": "string", "enum": kind[7:-1].split(",")}
    match kind:
        case "int" | "money" | "year":
            return {"type": "integer"}
        case "float":
            return {"type": "number"}
        case "bool":
            return {"type": "boolean"}
        case "pair" | "ints":
            return {"type": "array", "items": {"type": "integer"}}
        case _:
            return {"type": "string"}
