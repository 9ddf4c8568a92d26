# Sourced by the programs beside it: runs commands as process groups of their own and ends them properly.
# A signal to the program ends the group first, so that an interrupt at any moment, from a terminal or from a CI runner
# that knows only our process id, leaves nothing running.
# shellcheck shell=bash
set -m

current=

# Runs a command as a group, waits for its end and returns its exit code.
run_group() {
  local code=0
  "$@" &
  current=$!
  wait "$current" || code=$?
  current=
  return "$code"
}

# Ends the group of a process: an interrupt, a minute to clean up, a request to end, then the kernel's word.
stop_group() {
  local signal
  [ -n "$1" ] || return 0
  for signal in INT TERM KILL; do
    kill "-$signal" -- "-$1" 2>/dev/null || return 0
    for _ in $(seq 600); do
      kill -0 -- "-$1" 2>/dev/null || return 0
      sleep 0.1
    done
  done
}
