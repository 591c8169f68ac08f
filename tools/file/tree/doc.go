// Package tree is the program scopefs-files: it does the operations of the file tools below a directory, the view, in the
// sandbox of the agent. The kernel enforces the boundary. Package worker starts it.
//
// It imports neither the daemon's end nor net/http: the type of a content follows from the signatures in sniff.go, and errors are
// those of package message.
//
// One thread handles a request. Meanwhile its name is the id of the call, by which the view attributes what it records.
package tree
