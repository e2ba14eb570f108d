#!/usr/bin/env bash
# sandbox_image.sh [PROGRAM]: an image `localhost/plait-python` of this machine's Python for the sandbox `container`,
# where no registry can be reached. PROGRAM is podman (by default) or docker.
set -euo pipefail
program=${1:-podman}
python=$(readlink -f /usr/bin/python3)
library=$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
root=$(mktemp -d); trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{etc,proc,dev,sys,tmp,work,usr/bin}
for each in "$python" /bin/{sh,cat,ls,sleep} "$library"/lib-dynload/*.so; do ldd "$each" 2>/dev/null; done |
  grep -o '/[^ ]*\.so[^ ]*' | sort -u | xargs cp -L --parents -t "$root"
cp -rL --parents "$library" "$root"
for each in sh cat ls sleep; do cp -L "/bin/$each" "$root/usr/bin/$each"; done
cp "$python" "$root/usr/bin/python3"; ln -s python3 "$root/usr/bin/python"; ln -s usr/bin "$root/bin"
tar -C "$root" -c . | "$program" import --change 'ENV PATH=/usr/bin:/bin' - localhost/plait-python
