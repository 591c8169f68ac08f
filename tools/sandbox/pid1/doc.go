// Package pid1 is process 1 of a sandbox. It runs inside; package sandbox is the
// daemon's side, which starts it and does not trust it.
//
// # Life
//
// [Main] sets the process undumpable, closes every descriptor but the
// control socket, sends [OpReady], with [ArgListen] also a socket that listens in the
// sandbox's network, and serves requests. It returns when no process has
// the daemon's end of the control socket; the kernel then kills every other process of
// the sandbox (pid_namespaces(7)), and bwrap ends. So the sandbox ends with the daemon.
//
// # Commands
//
// [OpExec] starts a command as the leader of a new session (credentials(7)). Init makes
// the command's pipes or its terminal inside the sandbox and sends the daemon's ends
// with [OpStarted] (unix(7), SCM_RIGHTS): no descriptor of the host enters. [OpExited]
// reports the exit status. On a terminal a process of this program, the leader, leads the session and starts the command in the
// foreground, so that the kernel stops it at Ctrl-Z; [OpStopped] reports that. [OpSignal] signals the
// command's process group; SIGKILL ends every process of the command's session and their descendants. Init reaps all orphans.
//
// # The next daemon
//
// Another process may have the daemon's end of the control socket, too, and pass it to the next daemon. That one sends [OpState] with
// the commands whose files somebody else has. Init kills the sessions of the other commands, answers, and sends the last exit statuses
// again: the daemon before may have received them and died.
//
// # Messages
//
// One JSON value a SOCK_SEQPACKET packet. A [Request] is at most 192 KiB, a [Reply]
// 4 KiB with at most 3 descriptors. The daemon checks each reply against the state of
// its command.
package pid1
