#!/usr/bin/env bash
# Installs Bouquet's client on a device without containers: Raspberry Pi OS 64-bit (Bookworm), JetPack 7, other Linux
# with systemd, glibc and Python 3.11 or newer. Run it again to upgrade, or to change the options.
#
#   sudo deploy/install-client.sh --server 192.168.1.10:9092 --keys garden-pi
#
#   --server HOST:PORT   where the server listens
#   --keys DIR           this device's folder from the server's keys/devices (device.key, device.crt, ca.crt): copied
#   --insecure           instead of --keys, for a server that was started with --insecure
#   --data DIR           this device's data, not below /home; /srv/bouquet by default, which is made
#   --name NAME          name of this device where it has no key; its host's name by default
#   --memory-max SIZE    the client is restarted when it needs more, e.g. 700M
#   --source PATH        checkout or wheel; by default the checkout, or else the wheel, that this script lies beside
#   --constraints FILE   other versions, whose hashes are not checked; by default those of constraints.txt and
#                        requirements*.lock there, packages by their hashes (PyTorch's wheels differ between indexes)
#   --python PROGRAM     Python 3.11 or newer; python3 by default
#   --torch-index URL    take PyTorch from this index (NVIDIA's, on a Jetson); a PyTorch that is there is kept
#   --torch-pre          ... its pre-releases, too
#   --dry-run            check, and say what would be done
#   --uninstall          remove program and service; keys, data and the device's own model stay
#   --purge              with --uninstall: remove keys and model, too; data stay
set -euo pipefail

PREFIX=/opt/bouquet
VENV=$PREFIX/venv
ETC=/etc/bouquet
STATE=/var/lib/bouquet
UNITS=/etc/systemd/system
UNIT=bouquet-client.service
COMMAND=/usr/local/bin/bouquet
OWN_USER=bouquet
NEEDED_MB=2000 # docs/device-memory.md says what was measured

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
server='' keys='' insecure='' data='' name='' memory_max='' source='' constraints='' python=python3
torch_index='' torch_pre='' dry_run='' uninstall='' purge='' own_versions='' system_packages='' locks=()

say() { echo "install-client: $*"; }
fail() { echo "install-client: $*" >&2; exit 1; }
run() { # what changes the system
  if [[ $dry_run ]]; then echo "would run: $*"; else "$@"; fi
}
write() { # FILE MODE OWNER:GROUP < content, replaced whole
  if [[ $dry_run ]]; then echo "would write: $1"; cat >/dev/null; return; fi
  local draft=$1.new
  install -m "$2" -o "${3%:*}" -g "${3#*:}" /dev/null "$draft"
  cat >"$draft"
  mv "$draft" "$1"
}
value() { [[ $# -ge 2 && $2 != --* ]] || fail "$1 needs a value; --help shows the options."; }
has_systemd() { [[ -d /run/systemd/system ]] && command -v systemctl >/dev/null; }

while (($#)); do
  case $1 in
    --server) value "$@"; server=$2; shift ;;
    --keys) value "$@"; keys=$2; shift ;;
    --data) value "$@"; data=$2; shift ;;
    --name) value "$@"; name=$2; shift ;;
    --memory-max) value "$@"; memory_max=$2; shift ;;
    --source) value "$@"; source=$2; shift ;;
    --constraints) value "$@"; constraints=$2 own_versions=yes; shift ;;
    --python) value "$@"; python=$2; shift ;;
    --torch-index) value "$@"; torch_index=$2; shift ;;
    --torch-pre) torch_pre=--pre ;;
    --insecure) insecure=--insecure ;;
    --dry-run) dry_run=1 ;;
    --uninstall) uninstall=1 ;;
    --purge) purge=1 ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) fail "Unknown option $1; --help shows the options." ;;
  esac
  shift
done

check_root() {
  [[ $dry_run || $(id -u) == 0 ]] || fail "Run this as root: sudo $0 …"
}

remove_everything() {
  if has_systemd && [[ -f $UNITS/$UNIT ]]; then run systemctl disable --now "$UNIT"; fi
  run rm -rf "${UNITS:?}/$UNIT" "$UNITS/$UNIT.d" "$PREFIX"
  if [[ -L $COMMAND ]]; then run rm -f "$COMMAND"; fi
  if has_systemd; then run systemctl daemon-reload; fi
  if [[ $purge ]]; then
    run rm -rf "$ETC" "$STATE"
    if id "$OWN_USER" >/dev/null 2>&1; then run userdel "$OWN_USER"; fi
    say "Removed, with keys and model. Data stay where they are."
  else
    say "Removed. Keys ($ETC), model ($STATE) and data stay; --uninstall --purge removes the first two."
  fi
}

check_machine() {
  local machine bits free folder=/opt
  machine=$(uname -m) bits=$(getconf LONG_BIT)
  [[ $machine == aarch64 || $machine == x86_64 ]] ||
    fail "This machine is $machine; PyTorch has wheels for aarch64 and x86_64. On a Raspberry Pi, install the 64-bit OS."
  [[ $bits == 64 ]] || fail "This system is $bits-bit on a 64-bit kernel; install the 64-bit Raspberry Pi OS."
  command -v "$python" >/dev/null || fail "There is no $python; install it (apt install python3 python3-venv) or give --python."
  "$python" -I -c 'import struct, sys; sys.exit(not (sys.version_info >= (3, 11) and struct.calcsize("P") == 8))' ||
    fail "$("$python" -V) is too old, or 32-bit: Python 3.11 or newer is needed. JetPack 6 has 3.10: use the container there (docs/deploy-jetson.md), or give another --python."
  "$python" -I -c 'import ensurepip, venv' 2>/dev/null || fail "$python lacks venv: apt install python3-venv"
  [[ -d $folder ]] || folder=/
  free=$(df -Pm "$folder" | awk 'NR == 2 { print $4 }')
  [[ -d $VENV ]] || ((free >= NEEDED_MB)) || fail "$folder has $free MB free; $NEEDED_MB MB are needed."
}

find_source() {
  local root wheels
  root=$(dirname "$HERE")
  if [[ -z $source && -f $root/pyproject.toml ]]; then
    source=$root
  elif [[ -z $source ]]; then
    wheels=("$HERE"/bouquet_fl-*.whl)
    [[ ${#wheels[@]} == 1 && -f ${wheels[0]} ]] || fail "Give --source: a checkout of Bouquet, or its wheel (one lies beside this script at most)."
    source=${wheels[0]}
  fi
  [[ -f $source/pyproject.toml || ($source == *.whl && -f $source) ]] ||
    fail "--source $source is neither a checkout of Bouquet (a folder with pyproject.toml) nor a wheel."
  for folder in "$source" "$(dirname "$source")" "$HERE" "$root"; do
    [[ -n $constraints || ! -f $folder/constraints.txt ]] || constraints=$folder/constraints.txt
  done
  [[ -f $constraints ]] || fail "There is no constraints.txt with the tested versions; give --constraints FILE."
  if [[ $own_versions ]]; then return; fi
  for lock in "$(dirname "$constraints")"/requirements{,-report}.lock; do
    [[ -f $lock ]] || fail "There is no $lock with the packages' hashes beside constraints.txt; --constraints FILE installs without."
    locks+=(-r "$lock")
  done
}

check_options() {
  [[ -z $keys || -z $insecure ]] || fail "Give either --keys, for encryption and authentication, or --insecure."
  [[ -z $keys || (-f $keys/device.key && -f $keys/device.crt && -f $keys/ca.crt) ]] ||
    fail "$keys lacks device.key, device.crt or ca.crt: copy the folder keys/devices/DEVICE from the server, where bouquet keys add DEVICE makes it."
  [[ -z $server || $server =~ ^[^[:space:]]+:[0-9]+$ ]] || fail "--server $server is not of the form HOST:PORT, e.g. 192.168.1.10:9092."
  [[ -z $name || $name =~ ^[A-Za-z0-9._-]+$ ]] || fail "--name $name: letters, digits, '.', '_' and '-' only."
  [[ -z $memory_max || $memory_max =~ ^[0-9]+[KMG%]?$ ]] || fail "--memory-max $memory_max is not a size such as 700M."
  [[ $data != /home/* && $data != /root/* ]] || fail "--data $data: the service cannot see home folders; put the data into /srv/bouquet."
  [[ -z $data || -e $data ]] || fail "--data $data is not there."
}

make_user_and_folders() {
  id "$OWN_USER" >/dev/null 2>&1 ||
    run useradd --system --user-group --home-dir "$STATE" --no-create-home --shell /usr/sbin/nologin "$OWN_USER"
  run install -d -m 755 "$PREFIX"
  run install -d -m 750 -o root -g "$OWN_USER" "$ETC" "$ETC/keys"
  run install -d -m 750 -o "$OWN_USER" -g "$OWN_USER" "$STATE"
  # The one who installs puts data there; the service only reads them.
  [[ -e ${data:-/srv/bouquet} ]] || run install -d -m 2750 -o "${SUDO_USER:-root}" -g "$OWN_USER" /srv/bouquet
}

in_venv() { "$VENV/bin/python" -I "$@"; } # -I: nothing of the folder that this is started in
pip() { run env TMPDIR="$PREFIX/tmp" "$VENV/bin/python" -I -m pip install --no-cache-dir --disable-pip-version-check --quiet "$@"; }
torch_of() { "$1" -I -c 'import torch; v = torch.__version__; print(v if tuple(map(int, v.split(".")[:2])) >= (2, 9) else "")' 2>/dev/null || true; }
has_cuda() { "$1" -I -c 'import sys, torch; sys.exit(torch.version.cuda is None)' 2>/dev/null; }

install_torch() {
  local found versions
  # A half-made environment, of an installation that was cut off, is made again.
  if [[ -d $VENV ]] && ! in_venv -m pip --version >/dev/null 2>&1; then run rm -rf "$VENV"; fi
  if [[ ! -d $VENV ]]; then
    local flags=()
    # NVIDIA's PyTorch, installed for all users, is used as it is.
    if [[ -n $(torch_of "$python") ]] && has_cuda "$python"; then flags=(--system-site-packages) system_packages=1; fi
    run "$python" -I -m venv ${flags[@]+"${flags[@]}"} "$VENV"
  fi
  if grep -qs '^include-system-site-packages = true' "$VENV/pyvenv.cfg"; then system_packages=1; fi
  # /tmp may be memory.
  run install -d "$PREFIX/tmp"
  found=$(torch_of "$VENV/bin/python")
  # Without what PyTorch depends on, which comes from the package index with Bouquet: no other index need mirror it.
  if [[ $found ]]; then
    say "PyTorch $found is there and is kept."
  elif [[ $torch_index ]]; then
    pip --no-deps ${torch_pre:+"$torch_pre"} --index-url "$torch_index" torch torchvision
  elif [[ $(uname -m) == aarch64 ]]; then
    # The last aarch64 wheels without CUDA, a quarter of the size.
    pip --no-deps torch==2.10.0 torchvision==0.25.0
    if [[ -e /etc/nv_tegra_release ]]; then say "This Jetson gets PyTorch without CUDA; docs/deploy-jetson.md says how to have it with."; fi
  else
    mapfile -t versions < <(grep -E '^torch(vision)?==' "$constraints")
    pip --no-deps "${versions[@]}" --extra-index-url https://download.pytorch.org/whl/cpu
  fi
}

install_bouquet() {
  local pinned=$PREFIX/constraints.txt built=() what place kept=(torch torchvision)
  # PyTorch for all users was built with the NumPy beside it, which the lock's would hide.
  if [[ $system_packages ]]; then
    kept+=(numpy)
    for place in "${!locks[@]}"; do
      if [[ ${locks[place]} == -r ]]; then continue; fi
      what=$PREFIX/tmp/${locks[place]##*/}
      awk '/^[^ ]/ { skip = /^numpy==/ } !skip' "${locks[place]}" | write "$what" 644 root:root
      locks[place]=$what
    done
  fi
  # What is there and kept is part of the constraints, so that nothing replaces it.
  if [[ ! $dry_run ]]; then
    grep -vE "^($(IFS='|'; echo "${kept[*]}"))==" "$constraints" >"$pinned"
    in_venv -c 'import sys
from importlib import metadata as m
for name in sys.argv[1:]:
    try: print(f"{name}=={m.version(name)}")
    except m.PackageNotFoundError: pass' "${kept[@]}" >>"$pinned"
  fi
  what=$source
  # Built from a copy: a build leaves files in the checkout, which may belong to somebody else.
  if [[ -d $source ]]; then
    what=$PREFIX/tmp/source
    run rm -rf "$what"
    run install -d "$what"
    run cp -R "$source"/{pyproject.toml,README.md,LICENSE,bouquet,client,common,experiments,server,strategies} "$what"
  fi
  if ((${#locks[@]})); then
    pip --require-hashes --no-deps "${locks[@]}"
    built=(--no-build-isolation) # by the setuptools of the lock
  fi
  pip -c "$pinned" ${built[@]+"${built[@]}"} "$what"
  # The same version may hold other code.
  pip --no-deps ${built[@]+"${built[@]}"} --force-reinstall "$what"
  run rm -rf "$PREFIX/tmp"
  run ln -sfn "$VENV/bin/bouquet" "$COMMAND"
}

setting() { # NAME DEFAULT: what client.env says now
  local now=''
  if [[ -r $ETC/client.env ]]; then now=$(sed -n "s/^$1=//p" "$ETC/client.env" | tail -1); fi
  echo "${now:-$2}"
}

own_lines() { # what somebody added to client.env
  if [[ -r $ETC/client.env ]]; then grep -vE '^(#|$|BOUQUET_(SERVER|DATA|OPTIONS)=)' "$ETC/client.env" || true; fi
}

without() { # OPTION LINE: the line of options without this one and its value
  local option=$1 kept=() words=()
  read -ra words <<<"$2"
  set -- ${words[@]+"${words[@]}"}
  while (($#)); do
    case $1 in
      "$option") if [[ $# -gt 1 && $2 != -* ]]; then shift; fi ;;
      "$option="*) ;;
      *) kept+=("$1") ;;
    esac
    shift
  done
  echo "${kept[*]-}"
}

configure() {
  local options
  if [[ $keys ]]; then
    # The certificate last: newer than one that the server has renewed, it takes that one's place.
    for file in ca.crt device.key device.crt; do run install -m 640 -o root -g "$OWN_USER" "$keys/$file" "$ETC/keys/$file"; done
  fi
  options=$(setting BOUQUET_OPTIONS "--keys $ETC/keys")
  # What else somebody added stays: a device that sends with noise is not to lose that with a new key.
  if [[ $insecure || $keys ]]; then
    options="${insecure:---keys $ETC/keys} $(without --insecure "$(without --keys "$options")")"
  fi
  if [[ $name ]]; then options="$(without --name "$options") --name $name"; fi
  options=${options% }
  write "$ETC/client.env" 640 "root:$OWN_USER" <<CONF
# Settings of $UNIT. After a change: sudo systemctl restart bouquet-client
BOUQUET_SERVER=${server:-$(setting BOUQUET_SERVER '')}
BOUQUET_DATA=${data:-$(setting BOUQUET_DATA /srv/bouquet)}
# More options of: bouquet client
BOUQUET_OPTIONS=$options
$(own_lines)
CONF
  run install -d "$UNITS" "$UNITS/$UNIT.d"
  run install -m 644 "$HERE/$UNIT" "$UNITS/$UNIT"
  if [[ $memory_max ]]; then write "$UNITS/$UNIT.d/memory.conf" 644 root:root <<<$'[Service]\n'"MemoryMax=$memory_max"; fi
  if has_cuda "$VENV/bin/python"; then
    write "$UNITS/$UNIT.d/gpu.conf" 644 root:root <<<$'[Service]\nPrivateDevices=no\nSupplementaryGroups=video render\nSystemCallFilter='
  fi
}

start() {
  local missing=()
  if [[ -z ${server:-$(setting BOUQUET_SERVER '')} ]]; then missing+=("--server HOST:9092"); fi
  if [[ -z $insecure && -z $keys && ! -f $ETC/keys/device.crt && $(setting BOUQUET_OPTIONS '') != *--insecure* ]]; then
    missing+=("--keys DIR")
  fi
  if ! has_systemd; then
    say "There is no systemd here: the service was not started. By hand: $COMMAND client --help"
    return
  fi
  run systemctl daemon-reload
  if ((${#missing[@]})); then
    say "Not started yet. Run this again with ${missing[*]}."
    return
  fi
  run systemctl enable "$UNIT"
  run systemctl restart "$UNIT"
  say "Started. See what it does: journalctl -u bouquet-client -f"
}

check_root
if [[ $uninstall ]]; then remove_everything; exit 0; fi
check_machine
find_source
check_options
if has_systemd && [[ -f $UNITS/$UNIT ]]; then run systemctl stop "$UNIT"; fi
say "Installing Bouquet from $source into $VENV; PyTorch makes this take some minutes."
make_user_and_folders
install_torch
install_bouquet
configure
if [[ ! $dry_run ]]; then say "Installed: $("$VENV/bin/bouquet" --version)"; fi
start
