// Package fusemount mounts FUSE file systems and aborts their connections. It knows nothing of the protocol: package fusedev serves
// what is mounted, perhaps in another process.
package fusemount
