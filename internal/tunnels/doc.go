// Package tunnels is the daemon's side of the process that passes the bytes of agents' tunnels: package relay, the program
// scopefs-tunnels.
//
// The daemon decides about a connection, records it and connects; then it sends both sockets to the process. The process has
// no path, no capability and no network of its own. It outlives a daemon as views do, by the holder: the next daemon receives
// its sockets, and a list of the tunnels. A tunnel that ends without a daemon stays in that list until a daemon has recorded its
// end. The process ends the tunnels of a sandbox with process 1 of it.
//
// What the process says is checked: a daemon kills one that answers nonsense or not at all. The tunnels end with it, and the
// next tunnel starts another one.
package tunnels
