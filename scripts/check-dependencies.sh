#!/usr/bin/env bash
# Checks licences, sources, bans and known defects of all dependencies by the rules of deny.toml.
#
#   scripts/check-dependencies.sh              all checks; downloads the list of known defects
#   scripts/check-dependencies.sh --offline    without known defects
#
# Installs cargo-deny into target/tools if missing, which takes some minutes. Therefore
# scripts/test.sh does not run this.
set -euo pipefail
cd "$(dirname "$0")/.."
offline=
case "${1:-}" in
  "") ;;
  --offline) offline=yes ;;
  *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
tools=$PWD/target/tools
deny=$(command -v cargo-deny || true)
if [ -z "$deny" ]; then
  deny=$tools/bin/cargo-deny
  # Not optimised: it runs for seconds only and builds in a quarter of the time.
  [ -x "$deny" ] || CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=false \
    cargo install cargo-deny --version '^0.20' --locked --quiet --root "$tools"
fi
"$deny" --log-level warn check bans licenses sources
if [ -n "$offline" ]; then
  echo "known defects were not looked for (--offline)"
else
  "$deny" --log-level warn check advisories
fi
