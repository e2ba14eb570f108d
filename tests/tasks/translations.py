# ruff: noqa: E501  # lines of programs
"""Programs in Python and C with translations to C++ and OpenMP: right ones, and ones with a fault in their place.

Each row: the source's language and text, inputs, the translation's language, its text, and a piece of it with what a
wrong translation has there.
"""

from __future__ import annotations

from typing import NamedTuple


class Translation(NamedTuple):
    """A program, its translation, and what makes that wrong."""

    source: tuple[str, str]
    inputs: tuple[str, ...]
    language: str
    right: str
    piece: str
    wrong: str


C_HEAD = "#include <stdio.h>\n#include <stdlib.h>\n"
CPP_HEAD = "#include <algorithm>\n#include <cstdio>\n#include <iostream>\n#include <map>\n#include <string>\n#include <vector>\n"
FOR = "#pragma omp parallel for reduction(+ : sum)\n"

PRIMES = """int main(void) {
  int n;
  long sum = 0;
  if (scanf("%d", &n) != 1) return 1;
  for (int i = 2; i < n; i++) {
    int prime = 1;
    for (int j = 2; j * j <= i; j++) if (i % j == 0) prime = 0;
    sum += prime;
  }
  printf("%ld\\n", sum);
}
"""
DOT = """int main(void) {
  int n;
  if (scanf("%d", &n) != 1) return 1;
  long* a = malloc(sizeof(long) * n);
  for (int i = 0; i < n; i++) a[i] = i % 17 - 8;
  long sum = 0;
  for (int i = 0; i < n; i++) sum += a[i] * a[n - 1 - i];
  printf("%ld\\n", sum);
  free(a);
}
"""
ROWS = """int main(void) {
  int n;
  if (scanf("%d", &n) != 1) return 1;
  int* most = calloc(n, sizeof(int));
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) {
      int value = (i * 31 + j * 17) % 101;
      if (value > most[i]) most[i] = value;
    }
  for (int i = 0; i < n; i++) printf("%d ", most[i]);
  free(most);
}
"""
PI = """int main(void) {
  int n;
  if (scanf("%d", &n) != 1) return 1;
  double sum = 0;
  for (int i = 0; i < n; i++) sum += (i % 2 ? -4.0 : 4.0) / (2 * i + 1);
  printf("%.6f\\n", sum);
}
"""

TRANSLATIONS = {
    "primes": Translation(
        ("c", C_HEAD + PRIMES), ("1", "100", "5000"), "openmp",
        C_HEAD + PRIMES.replace("  for (int i = 2", FOR + "  for (int i = 2"), "reduction(+ : sum)", "lastprivate(sum)",
    ),
    "dot product": Translation(
        ("c", C_HEAD + DOT), ("1", "1000", "77"), "openmp",
        C_HEAD + DOT.replace("malloc", "(long*)malloc").replace(
            "  for (int i = 0; i < n; i++) sum", FOR + "  for (int i = 0; i < n; i++) sum"),
        "a[n - 1 - i]", "a[i]",
    ),
    "row maxima": Translation(
        ("c", C_HEAD + ROWS), ("1", "60"), "openmp",
        C_HEAD + ROWS.replace("calloc(n", "(int*)calloc(n").replace(
            "  for (int i = 0; i < n; i++)\n    for", "#pragma omp parallel for\n  for (int i = 0; i < n; i++)\n    for"),
        "j * 17", "j * 16",
    ),
    "pi": Translation(
        ("c", C_HEAD + PI), ("1", "20000"), "openmp",
        C_HEAD + PI.replace("  for (int i", FOR + "  for (int i"), "2 * i + 1", "2 * i + 2",
    ),
    "word counts": Translation(
        ("python", "import sys\ncounts = {}\nfor word in sys.stdin.read().split():\n    counts[word] = counts.get(word, 0) + 1\n"
         "for word in sorted(counts):\n    print(word, counts[word])\n"),
        ("b a b", "z", "the cat the dog"), "cpp",
        CPP_HEAD + "int main() {\n  std::map<std::string, int> counts;\n  for (std::string w; std::cin >> w;) counts[w]++;\n"
        '  for (auto& [w, n] : counts) std::cout << w << " " << n << "\\n";\n}\n',
        "counts[w]++", "counts[w] = 1",
    ),
    "edit distance": Translation(
        ("python", "a, b = input(), input()\nrow = list(range(len(b) + 1))\nfor i, x in enumerate(a, 1):\n    last, row[0] = row[0], i\n"
         "    for j, y in enumerate(b, 1):\n        last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))\n"
         "print(row[-1])\n"),
        ("kitten\nsitting\n", "a\nb\n", "same\nsame\n", "abc\n\n"), "cpp",
        CPP_HEAD + "int main() {\n  std::string a, b;\n  std::getline(std::cin, a);\n  std::getline(std::cin, b);\n"
        "  std::vector<int> row(b.size() + 1);\n  for (size_t j = 0; j < row.size(); j++) row[j] = j;\n"
        "  for (size_t i = 1; i <= a.size(); i++) {\n    int last = row[0];\n    row[0] = i;\n"
        "    for (size_t j = 1; j <= b.size(); j++) {\n      int above = row[j];\n"
        "      row[j] = std::min({above + 1, row[j - 1] + 1, last + (a[i - 1] != b[j - 1])});\n      last = above;\n    }\n  }\n"
        '  printf("%d\\n", row.back());\n}\n',
        "last = above;", "last = row[j];",
    ),
    "sum of squares": Translation(
        ("python", "n = int(input())\nprint(sum(i * i for i in range(n)))\n"), ("0", "10", "100000"), "openmp",
        CPP_HEAD + f'int main() {{\n  long n, sum = 0;\n  if (scanf("%ld", &n) != 1) return 1;\n{FOR}'
        '  for (long i = 0; i < n; i++) sum += i * i;\n  printf("%ld\\n", sum);\n}\n',
        "sum += i * i", "sum += i",
    ),
    "histogram": Translation(
        ("python", "n = int(input())\nbins = [0] * 8\nfor i in range(n):\n    bins[i * i % 8] += 1\nprint(*bins)\n"),
        ("0", "1", "5000"), "openmp",
        CPP_HEAD + 'int main() {\n  int n, bins[8] = {};\n  if (scanf("%d", &n) != 1) return 1;\n'
        "#pragma omp parallel for reduction(+ : bins[:8])\n  for (int i = 0; i < n; i++) bins[(long)i * i % 8]++;\n"
        '  for (int i = 0; i < 8; i++) printf(i ? " %d" : "%d", bins[i]);\n}\n',
        " reduction(+ : bins[:8])", "",
    ),
}  # fmt: skip
