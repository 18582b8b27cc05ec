# Two versions of JAX for the CPU, whose arrays memspy lists.
#
#   scripts/setup.sh jax    into target/envs/jax-VERSION; downloads 220 MB in 20 to 60 s
#
# Used by the tests of tests/live/jax.rs.

# shellcheck shell=bash
for version in 0.5.3 0.10.2; do
  place=target/envs/jax-$version
  [ ! -e $place/.installed ] || continue
  python3 -m venv --clear $place
  $place/bin/pip install --quiet --disable-pip-version-check "jax[cpu]==$version"
  touch $place/.installed
done
