package scope

import "fmt"

// Op is an operation on a file of a view. A policy decides about it and the log
// names it.
type Op uint8

// The operations. Those up to OpStat tell attributes alone; OpOpenWrite and the ones after it change something.
const (
	OpLookup Op = iota
	OpStat
	OpReadlink
	OpReadDir
	OpOpen // for reading
	OpRead // from an open file, for data mediated by the view
	OpGetXattr
	OpStatFS
	OpOpenWrite // for writing, truncating or appending
	OpWrite     // to an open file, for data mediated by the view
	OpCreate
	OpMkdir
	OpMknod
	OpSymlink
	OpLinkFrom // the existing name of link(2)
	OpLink     // the new name of link(2)
	OpUnlink
	OpRmdir
	OpRenameFrom
	OpRename // the new name of rename(2)
	OpSetattr
	OpSetXattr
	OpIoctl
	opCount
)

var opNames = [opCount]string{
	OpLookup: "lookup", OpStat: "stat", OpReadlink: "readlink", OpReadDir: "readdir",
	OpOpen: "open", OpRead: "read", OpGetXattr: "getxattr", OpStatFS: "statfs",
	OpOpenWrite: "open-write", OpWrite: "write",
	OpCreate: "create", OpMkdir: "mkdir", OpMknod: "mknod", OpSymlink: "symlink",
	OpLinkFrom: "link-from", OpLink: "link", OpUnlink: "unlink", OpRmdir: "rmdir",
	OpRenameFrom: "rename-from", OpRename: "rename", OpSetattr: "setattr",
	OpSetXattr: "setxattr", OpIoctl: "ioctl",
}

// String returns the name used in the log and on the command line.
func (op Op) String() string {
	if op < opCount {
		return opNames[op]
	}
	return fmt.Sprintf("op(%d)", uint8(op))
}

// Mutates reports whether the operation changes the tree or a file in it.
func (op Op) Mutates() bool { return op >= OpOpenWrite }

// OpNames returns the names of all operations.
func OpNames() []string { return opNames[:] }

// ParseOp returns the operation named s. It returns an error for an unknown
// name.
func ParseOp(s string) (Op, error) {
	for op, name := range opNames {
		if name == s {
			return Op(op), nil
		}
	}
	return 0, fmt.Errorf("unknown operation %q: want one of %v", s, opNames)
}
