# The bash interpreter of a context.
#
# A line on descriptor 3 says that a request stands on 6, a file: texts, each
# ended by a zero byte, because bash reads a pipe byte by byte. What the code
# does goes to 0, 1 and 2; that it is done, as a frame, to 4. None of the others
# is passed on to what the code starts.

# Interrupted, every function returns, as far as the one that runs the cell.
__cs_leave() { [ "${FUNCNAME[1]}" = __cs_cell ] || return 2; }
__cs_interrupt() {
	set -T
	shopt -s extdebug
	trap __cs_leave DEBUG
}

__cs_run() {
	trap __cs_interrupt INT 60
	eval -- "${__cs_request[1]}"
}

__cs_cell() {
	local __cs_i __cs_name __cs_status __cs_folder=$PWD __cs_first=$((6 + 2 * ${__cs_request[5]:-0}))
	local -A __cs_before=()
	[ -z "${__cs_request[4]}" ] || RANDOM=$((16#${__cs_request[4]:0:7}))
	for ((__cs_i = 6; __cs_i < __cs_first; __cs_i += 2)); do # these stay: this is a copy, and they say whose
		export -- "${__cs_request[__cs_i]}=${__cs_request[__cs_i + 1]}"
	done
	for ((__cs_i = __cs_first; __cs_i + 1 < ${#__cs_request[@]}; __cs_i += 2)); do
		__cs_name=${__cs_request[__cs_i]}
		[ -z "${!__cs_name+set}" ] || __cs_before[$__cs_name]=${!__cs_name}
		export -- "$__cs_name=${__cs_request[__cs_i + 1]}"
	done
	if [ -z "${__cs_request[2]}" ] || cd -- "${__cs_request[2]}"; then
		__cs_run 3<&- 4>&- 6<&-
		__cs_status=$?
	else
		__cs_status=1
	fi
	trap - DEBUG
	trap '' INT 60
	shopt -u extdebug
	set +T
	for ((__cs_i = __cs_first; __cs_i + 1 < ${#__cs_request[@]}; __cs_i += 2)); do
		__cs_name=${__cs_request[__cs_i]}
		unset -v "$__cs_name"
		[ -z "${__cs_before[$__cs_name]+set}" ] || export -- "$__cs_name=${__cs_before[$__cs_name]}"
	done
	[ -z "${__cs_request[2]}" ] || cd -- "$__cs_folder"
	return "$__cs_status"
}

exec 5<&-
trap '' INT 60
while IFS= read -r -u 3 REPLY; do
	mapfile -d '' -t -u 6 __cs_request
	__cs_cell
	printf '\000\000\000\017\000\000\000\004done\000\000\000\003%03d' "$?" >&4
done
