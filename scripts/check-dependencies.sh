#!/usr/bin/env bash
# Checks licences, sources, bans and known defects of all dependencies by the rules of deny.toml.
#
#   scripts/check-dependencies.sh              all of it; the list of known defects comes over the network
#   scripts/check-dependencies.sh --offline    without known defects
#
# Installs cargo-deny into target/tools when it is missing: some minutes, so scripts/test.sh does not run this.
set -euo pipefail
cd "$(dirname "$0")/.."
offline=
case "${1:-}" in
  "") ;;
  --offline) offline=yes ;;
  *) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
tools=$PWD/target/tools
deny=$(command -v cargo-deny || true)
if [ -z "$deny" ]; then
  deny=$tools/bin/cargo-deny
  # Not optimised, as it runs for some seconds: that takes a quarter of the time to build.
  [ -x "$deny" ] || CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=false \
    cargo install cargo-deny --version '^0.20' --locked --quiet --root "$tools"
fi
"$deny" --log-level warn check bans licenses sources
if [ -n "$offline" ]; then
  echo "known defects were not looked for (--offline)"
else
  "$deny" --log-level warn check advisories
fi
