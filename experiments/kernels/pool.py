# ruff: noqa: E501  # lines of C++
"""Ten kernels in C++ with OpenMP, each in several variants: slow, fast, parallel, racy, wrong and cheating.

A program reads a size and a seed and writes a checksum. Its data come from the seed, so another seed is another input.
"""

from __future__ import annotations

from typing import NamedTuple

HEAD = """#include <omp.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>
using std::vector;
static uint64_t state;
static int64_t draw(int64_t below) {
  state ^= state << 13; state ^= state >> 7; state ^= state << 17;
  return (int64_t)(state % (uint64_t)below);
}
int main() {
  int n, seed;
  if (scanf("%d %d", &n, &seed) != 2) return 1;
  state = 88172645463325252ULL + 1000003ULL * (uint64_t)seed;
"""
PATH = ("serial", "better", "parallel", "best")
"""Variants from the slowest to the one that is meant to be best; `racy`, `wrong` and `cheat` stand beside it."""


class Kernel(NamedTuple):
    """A kernel: what is set up, the variants of its body, and what is written."""

    size: int
    """Of timed runs."""
    setup: str
    bodies: dict[str, str]
    end: str

    def program(self, variant: str, public: str = "", answer: str = "") -> str:
        """Return a variant's program. `cheat` writes the answer of the public input, and nothing for others."""
        if variant == "cheat":
            given = public.split()
            return f'{HEAD}  puts(n == {given[0]} && seed == {given[1]} ? "{answer}" : "0");\n}}\n'
        return f"{HEAD}{self.setup}{self.bodies[variant]}{self.end}}}\n"


def _kernel(size: int, setup: str, end: str, **bodies: str) -> Kernel:
    return Kernel(size, setup, bodies, end)


SUM = "  int64_t sum = 0;\n  for (size_t i = 0; i < %s.size(); i++) sum = (sum * 31 + (int64_t)%s[i]) % 1000000007;\n"
WRITE = '  printf("%lld\\n", (long long)sum);\n'


def _checksum(name: str) -> str:
    return SUM.replace("%s", name) + WRITE


_ROWS = """  for (int t = 0; t < 4; t++) {
{pragma}    for (int i = 1; i < n - 1; i++)
      for (int j = 1; j < n - 1; j++)
        b[i * n + j] = a[i * n + j - 1] + a[i * n + j + 1] + a[(i - 1) * n + j] + a[(i + 1) * n + j] & 1023;
    std::swap(a, b);
  }
"""
_COLUMNS = _ROWS.replace("int i = 1; i < n - 1; i++", "int J = 1; J < n - 1; J++").replace(
    "int j = 1; j < n - 1; j++", "int i = 1, j = J; i < n - 1; i++"
)
_PARALLEL = "#pragma omp parallel for\n"
_MATMUL = "  for (int i = 0; i < n; i++)\n    for (int {x} = 0; {x} < n; {x}++)\n      for (int {y} = 0; {y} < n; {y}++)\n        c[i * n + j] += a[i * n + k] * b[k * n + j];\n"
_IJK, _IKJ = _MATMUL.format(x="j", y="k"), _MATMUL.format(x="k", y="j")
_SEARCHED = "int low = 0; while (low < 255 && edge[low + 1] <= x[i]) low++;"
_BLOCKS = """  int blocks = omp_get_max_threads() * 4, size = n / blocks + 1;
  vector<int64_t> last(blocks + 1, START);
#pragma omp parallel for
  for (int k = 0; k < blocks; k++) {
    int64_t now = START;
    for (int i = k * size; i < std::min(n, (k + 1) * size); i++) y[i] = now = JOIN(now, x[i]);
    last[k + 1] = now;
  }
  for (int k = 1; k <= blocks; k++) last[k] = JOIN(last[k], last[k - 1]);
#pragma omp parallel for
  for (int k = 1; k < blocks; k++)
    for (int i = k * size; i < std::min(n, (k + 1) * size); i++) y[i] = JOIN(y[i], last[k]);
"""
_WINDOWS = """{pragma}  for (int i = 0; i < n; i++) {
    int64_t now = START;
    for (int k = i & ~63; k <= i; k++) now = JOIN(now, x[k]);
    y[i] = now;
  }
  for (int block = 64; block < n; block += 64)
    for (int i = block; i < std::min(n, block + 64); i++) y[i] = JOIN(y[i], y[block - 1]);
"""
_SCAN = "  int64_t now = START;\n  for (int i = 0; i < n; i++) y[i] = now = JOIN(now, x[i]);\n"
_RACY_SCAN = "  y[0] = x[0];\n#pragma omp parallel for\n  for (int i = 1; i < n; i++) y[i] = JOIN(y[i - 1], x[i]);\n"


def _scan(size: int, start: str, join: str, wrong: str) -> Kernel:
    """Return a scan by an operation. Parallel ones compute blocks and then add what stands before."""

    def fill(body: str) -> str:
        return body.replace("START", start).replace("JOIN", join)

    return _kernel(
        size,
        "  auto plus = [](int64_t a, int64_t b) { return a + b; };\n  (void)plus;\n"
        "  vector<int64_t> x(n), y(n);\n  for (auto& each : x) each = draw(1000000);\n",
        _checksum("y"),
        serial=fill(_WINDOWS.replace("{pragma}", "")),
        better=fill(_SCAN),
        parallel=fill(_WINDOWS.replace("{pragma}", _PARALLEL)),
        best=fill(_BLOCKS),
        racy=fill(_RACY_SCAN),
        wrong=fill(_BLOCKS.replace("JOIN(y[i], last[k])", wrong)),
    )


_SPMV = "{pragma}  for (int i = 0; i < n; i++) {{\n    int64_t now = 0;\n    for (int k = first[i]; k < first[i + 1]{less}; k++) now += value[k] * x[column[k]];\n    y[i] = now;\n  }}\n"
_SCATTER = "{pragma}  for (int j = 0; j < n; j++)\n    for (int k : of[j]) {{\n{atomic}      y[row[k]] += value[k] * x[j];\n    }}\n"
_BODIES = """{pragma}  for (int i = 0; i < n; i++) {
    double fx = 0, fy = 0;
    for (int j = 0; j < n; j++) {
      double dx = px[j] - px[i], dy = py[j] - py[i], d = dx * dx + dy * dy + 0.01;
      double w = WEIGHT;
      fx += w * dx; fy += w * dy;
    }
    vx[i] += fx; vy[i] += fy;
  }
"""
_PAIRS = """#pragma omp parallel for
  for (int i = 0; i < n; i++)
    for (int j = i + 1; j < n; j++) {
      double dx = px[j] - px[i], dy = py[j] - py[i], d = dx * dx + dy * dy + 0.01, w = 1 / (d * std::sqrt(d));
      vx[i] += w * dx; vy[i] += w * dy; vx[j] -= w * dx; vy[j] -= w * dy;
    }
"""
_MEANS = """  for (int t = 0; t < 5; t++) {
    vector<int64_t> sx(16), sy(16), many(16);
    int64_t *X = sx.data(), *Y = sy.data(), *M = many.data();
{pragma}    for (int i = 0; i < n; i++) {
      int near = 0;
      DISTANCE
      X[near] += px[i]; Y[near] += py[i]; M[near]++;
    }
    for (int k = 0; k < 16; k++) if (many[k]) { cx[k] = sx[k] / many[k]; cy[k] = sy[k] / many[k]; }
  }
"""
_ROOT = "for (int k = 1; k < 16; k++) if (std::hypot((long double)(px[i] - cx[k]), py[i] - cy[k]) < std::hypot((long double)(px[i] - cx[near]), py[i] - cy[near])) near = k;"
_SQUARE = "int64_t least = INT64_MAX; for (int k = 0; k < 16; k++) { int64_t dx = px[i] - cx[k], dy = py[i] - cy[k], d = dx * dx + dy * dy; if (d < least) { least = d; near = k; } }"
_REDUCED = "#pragma omp parallel for reduction(+ : X[:16], Y[:16], M[:16])\n"
_HALVES = """  int half = n / 2;
#pragma omp parallel sections
  {
#pragma omp section
    std::sort(x.begin(), x.begin() + half{over});
#pragma omp section
    std::sort(x.begin() + half, x.end());
  }
"""
_SHELL = "  for (int gap = n / 2; gap > 0; gap /= 2)\n    for (int i = gap; i < n; i++)\n      for (int j = i; j >= gap && x[j - gap] > x[j]; j -= gap) std::swap(x[j], x[j - gap]);\n"
_SHELLS = """  vector<int64_t> a(x.begin(), x.begin() + n / 2), b(x.begin() + n / 2, x.end());
  auto shell = [](vector<int64_t>& v) {
    int m = (int)v.size();
    for (int gap = m / 2; gap > 0; gap /= 2)
      for (int i = gap; i < m; i++)
        for (int j = i; j >= gap && v[j - gap] > v[j]; j -= gap) std::swap(v[j], v[j - gap]);
  };
#pragma omp parallel for
  for (int k = 0; k < 2; k++) shell(k ? b : a);
  std::merge(a.begin(), a.end(), b.begin(), b.end(), x.begin());
"""

KERNELS = {
    "stencil": _kernel(
        1400, "  vector<int> a((size_t)n * n), b;\n  for (auto& each : a) each = (int)draw(1024);\n  b = a;\n", _checksum("a"),
        serial=_COLUMNS.replace("{pragma}", ""), better=_ROWS.replace("{pragma}", ""),
        parallel=_COLUMNS.replace("{pragma}", _PARALLEL), best=_ROWS.replace("{pragma}", _PARALLEL),
        racy=_ROWS.replace("{pragma}", _PARALLEL).replace("b[i * n + j] =", "a[i * n + j] =").replace("    std::swap(a, b);\n", ""),
        wrong=_ROWS.replace("{pragma}", _PARALLEL).replace("t < 4", "t < 2"),
    ),
    "reduction": _kernel(
        6000000, "  vector<int> x(n);\n  for (auto& each : x) each = (int)draw(1000);\n  int64_t sum = 0;\n", WRITE,
        serial="  for (int i = 0; i < n; i++) sum += (int64_t)std::pow((double)x[i], 3.0) % 7;\n",
        better="  for (int i = 0; i < n; i++) sum += (int64_t)x[i] * x[i] * x[i] % 7;\n",
        parallel="#pragma omp parallel for reduction(+ : sum)\n  for (int i = 0; i < n; i++) sum += (int64_t)std::pow((double)x[i], 3.0) % 7;\n",
        best="#pragma omp parallel for reduction(+ : sum)\n  for (int i = 0; i < n; i++) sum += (int64_t)x[i] * x[i] * x[i] % 7;\n",
        racy="#pragma omp parallel for\n  for (int i = 0; i < n; i++) sum += (int64_t)x[i] * x[i] * x[i] % 7;\n",
        wrong="#pragma omp parallel for reduction(+ : sum)\n  for (int i = 0; i < n; i++) sum += x[i] % 7;\n",
    ),
    "matmul": _kernel(
        420, "  vector<int64_t> a((size_t)n * n), b(a), c(a);\n  for (auto& each : a) each = draw(100);\n  for (auto& each : b) each = draw(100);\n",
        _checksum("c"), serial=_IJK, better=_IKJ, parallel=_PARALLEL + _IJK, best=_PARALLEL + _IKJ,
        racy=_IKJ.replace("    for (int k", "#pragma omp parallel for\n    for (int k"),
        wrong=_PARALLEL + _IKJ.replace("b[k * n + j]", "b[j * n + k]"),
    ),
    "histogram": _kernel(
        1000000, "  vector<int> x(n), edge(257), h(256);\n  for (auto& each : x) each = (int)draw(65536);\n"
        "  for (int k = 0; k < 257; k++) edge[k] = 256 * k;\n  int* H = h.data();\n", _checksum("h"),
        serial=f"  for (int i = 0; i < n; i++) {{ {_SEARCHED} H[low]++; }}\n",
        better="  for (int i = 0; i < n; i++) H[x[i] >> 8]++;\n",
        parallel=f"#pragma omp parallel for\n  for (int i = 0; i < n; i++) {{ {_SEARCHED}\n#pragma omp atomic\n    H[low]++; }}\n",
        best="#pragma omp parallel for reduction(+ : H[:256])\n  for (int i = 0; i < n; i++) H[x[i] >> 8]++;\n",
        racy="#pragma omp parallel for\n  for (int i = 0; i < n; i++) H[x[i] >> 8]++;\n",
        wrong="#pragma omp parallel for reduction(+ : H[:256])\n  for (int i = 1; i < n; i++) H[x[i] >> 8]++;\n",
    ),
    "scan": _scan(3000000, "INT64_MIN", "std::max<int64_t>", "y[i]"),
    "sort": _kernel(
        700000, "  vector<int64_t> x(n);\n  for (auto& each : x) each = draw(1000000000);\n", _checksum("x"),
        serial=_SHELL, better="  std::sort(x.begin(), x.end());\n", parallel=_SHELLS,
        best=_HALVES.replace("{over}", "") + "  std::inplace_merge(x.begin(), x.begin() + half, x.end());\n",
        racy=_HALVES.replace("{over}", " + 1") + "  std::inplace_merge(x.begin(), x.begin() + half, x.end());\n",
        wrong=_HALVES.replace("{over}", ""),
    ),
    "spmv": _kernel(
        60000, "  int per = 16, nonzero = n * per;\n  vector<int> row(nonzero), column(nonzero), first(n + 1);\n"
        "  vector<int64_t> value(nonzero), x(n), y(n);\n  for (int k = 0; k < nonzero; k++) {\n    row[k] = k / per;\n"
        "    column[k] = (int)draw(n); value[k] = draw(9);\n  }\n  for (auto& each : x) each = draw(100);\n"
        "  vector<vector<int>> of(n);\n  for (int k = 0; k < nonzero; k++) of[column[k]].push_back(k);\n"
        "  for (int i = 0; i <= n; i++) first[i] = i * per;\n  for (int t = 0; t < 6; t++) {\n",
        "  for (int i = 0; i < n; i++) { x[i] = y[i] & 255; }\n  }\n" + _checksum("x"),
        serial="  std::fill(y.begin(), y.end(), 0);\n" + _SCATTER.format(pragma="", atomic=""),
        better=_SPMV.format(pragma="", less=""),
        parallel="  std::fill(y.begin(), y.end(), 0);\n" + _SCATTER.format(pragma=_PARALLEL, atomic="#pragma omp atomic\n"),
        best=_SPMV.format(pragma=_PARALLEL, less=""),
        racy="  std::fill(y.begin(), y.end(), 0);\n" + _SCATTER.format(pragma=_PARALLEL, atomic=""),
        wrong=_SPMV.format(pragma=_PARALLEL, less=" - 1"),
    ),
    "n-body": _kernel(
        2200, "  vector<double> px(n), py(n), vx(n), vy(n);\n  for (int i = 0; i < n; i++) { px[i] = draw(1000) / 10.0; py[i] = draw(1000) / 10.0; }\n",
        '  double total = 0;\n  for (int i = 0; i < n; i++) total += std::abs(vx[i]) + std::abs(vy[i]);\n  printf("%.4e\\n", total);\n',
        serial=_BODIES.replace("{pragma}", "").replace("WEIGHT", "std::pow(d, -1.5)"),
        better=_BODIES.replace("{pragma}", "").replace("WEIGHT", "1 / (d * std::sqrt(d))"),
        parallel=_BODIES.replace("{pragma}", _PARALLEL).replace("WEIGHT", "std::pow(d, -1.5)"),
        best=_BODIES.replace("{pragma}", _PARALLEL).replace("WEIGHT", "1 / (d * std::sqrt(d))"),
        racy=_PAIRS, wrong=_BODIES.replace("{pragma}", _PARALLEL).replace("WEIGHT", "1 / d"),
    ),
    "k-means": _kernel(
        60000, "  vector<int64_t> px(n), py(n), cx(16), cy(16);\n  for (int i = 0; i < n; i++) { px[i] = draw(10000); py[i] = draw(10000); }\n"
        "  for (int k = 0; k < 16; k++) { cx[k] = px[k]; cy[k] = py[k]; }\n", _checksum("cx"),
        serial=_MEANS.replace("{pragma}", "").replace("DISTANCE", _ROOT),
        better=_MEANS.replace("{pragma}", "").replace("DISTANCE", _SQUARE),
        parallel=_MEANS.replace("{pragma}", _REDUCED).replace("DISTANCE", _ROOT),
        best=_MEANS.replace("{pragma}", _REDUCED).replace("DISTANCE", _SQUARE),
        racy=_MEANS.replace("{pragma}", _PARALLEL).replace("DISTANCE", _SQUARE),
        wrong=_MEANS.replace("{pragma}", _REDUCED).replace("DISTANCE", _SQUARE).replace("t < 5", "t < 1"),
    ),
    "prefix sums": _scan(3000000, "0", "plus", "y[i]"),
}  # fmt: skip
