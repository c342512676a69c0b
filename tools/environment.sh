#!/bin/sh
# Make or update the environment .venv, for the Makefile.
#   tools/environment.sh run    what `make reproduce` needs
#   tools/environment.sh test   that and the test tools
# Read from the environment: PYTHON and TORCH_INDEX (see `make help`). Does nothing when .venv fits
# pyproject.toml, the constraints of its Python and this folder.
set -eu
cd "$(dirname "$0")/.."
root=$(pwd -P)
what=$1
venv=.venv
start=$(date +%s)
PATH=$(printf %s "$PATH" | sed "s|$root/$venv/bin:||g") # an activated .venv may be about to be remade

say() { echo "environment: $*"; }
fail() { echo "error: $*" >&2 && exit 1; }

version_of() { # PYTHON MODULE...: print its X.Y.Z; fail where it cannot be run or lacks a module
    probe_python=$1
    shift
    "$probe_python" -c '
import sys
print("%d.%d.%d" % sys.version_info[:3])
for module in sys.argv[1:]: __import__(module)' "$@" 2>/dev/null
}

supported() {
    case $1 in 3.11.* | 3.12.* | 3.13.*) ;; *) return 1 ;; esac
}

find_python() { # sets python and version
    if [ -n "${PYTHON:-}" ]; then
        set -- "$PYTHON"
    else
        set -- python3 python python3.13 python3.12 python3.11
    fi
    found=
    for python; do
        if version=$(version_of "$python" venv ensurepip); then
            if supported "$version"; then return; fi
            found="$found, $python is $version"
        elif [ -n "$version" ] && supported "$version"; then
            found="$found, $python ($version) lacks venv (Debian and Ubuntu have it in python3-venv)"
        elif [ -n "$version" ]; then
            found="$found, $python is $version"
        elif [ -n "${PYTHON:-}" ]; then
            found=", $python cannot be run"
        fi
    done
    [ -n "$found" ] || found=", none was found"
    fail "Python 3.11, 3.12 or 3.13 is needed, but ${found#, }; install one, or name one: make PYTHON=/path/to/python3.12 ..."
}

made_for() { # KEY: a line of the note that this script leaves in .venv
    sed -n "s/^$1=//p" "$venv/made-for.txt" 2>/dev/null || true
}

fault() { # print why .venv cannot be used, if so
    if ! have=$(version_of "$venv/bin/python" pip) || ! supported "$have"; then
        echo "is broken or of an unsupported Python"
    elif folder=$(made_for folder) && [ "${folder:-$root}" != "$root" ]; then
        echo "was made for $folder"
    elif [ -n "${PYTHON:-}" ] && [ "$have" != "$version" ]; then
        echo "is of Python $have, but PYTHON=$PYTHON is $version"
    elif [ -n "${TORCH_INDEX:-}" ] && [ "$(made_for torch_index)" != "$TORCH_INDEX" ]; then
        echo "has PyTorch from another index than $TORCH_INDEX"
    fi
}

size() { # what a first installation costs: measured on Linux x86-64, from the sizes of the parts elsewhere
    case $(uname -s)/$index in
    Linux/) echo "3.2 GB to download, 6.7 GB on disk (PyTorch with CUDA)" ;;
    */*/cpu | */*/cpu/) echo "0.5 GB to download, 1.9 GB on disk (PyTorch for the CPU)" ;;
    */) echo "0.4 GB to download, 1.6 GB on disk" ;;
    *) echo "PyTorch from $index and 0.3 GB to download, 1.2 GB on disk" ;;
    esac
}

pip_install() {
    [ -t 1 ] || set -- -qq "$@" # progress bars are for people
    "$venv/bin/python" -m pip --disable-pip-version-check install -c "$constraints" "$@" ||
        fail "pip could not install (its messages are above); check network and disk space, then run this again"
}

[ -z "${PYTHON:-}" ] || find_python
if [ -e "$venv" ] || [ -L "$venv" ]; then
    why=$(fault)
    if [ -n "$why" ]; then
        find_python
        say "$venv $why: making it anew"
        rm -rf "$venv"
    fi
fi
index=${TORCH_INDEX:-$(made_for torch_index)}
if [ -e "$venv" ]; then
    version=$(version_of "$venv/bin/python")
else
    find_python
fi
constraints=constraints/py$(echo "$version" | cut -d. -f1,2 | tr -d .).txt
key="$version $(cat pyproject.toml "$constraints" | cksum)"
for stamp in "$venv/ready-$what" "$venv/ready-test"; do
    if [ "$(cat "$stamp" 2>/dev/null)" = "$key" ]; then
        say "up to date ($venv, Python $version)"
        exit
    fi
done

if ls "$venv"/lib/python3.*/site-packages/torch/version.py >/dev/null 2>&1; then
    say "installing what is missing into $venv (Python $version)"
else
    say "installing into $venv with Python $version: about $(size); takes some minutes"
    if [ "$(uname -s)/$index" = Linux/ ]; then
        say "without an NVIDIA GPU, stop this and add TORCH_INDEX=https://download.pytorch.org/whl/cpu"
    fi
fi
[ -e "$venv" ] || "$python" -m venv "$venv" || fail "$python -m venv $venv failed (its message is above)"
rm -f "$venv"/ready-*
printf 'folder=%s\ntorch_index=%s\n' "$root" "$index" >"$venv/made-for.txt"
[ -z "$index" ] || pip_install --no-deps --index-url "$index" torch
case $what in
run) pip_install -e . ;;
*) pip_install -e ".[$what]" ;;
esac
echo "$key" >"$venv/ready-$what"
say "ready after $(($(date +%s) - start)) s"
