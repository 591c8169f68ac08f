package judge

import (
	"encoding/binary"
	"strings"

	"github.com/scopefs/scopefs/scope/beneath"
)

// Attribute reports whether a view has this extended attribute: user.* but user.overlay.*, and the ACLs, which
// the kernel enforces. trusted.* and security.* belong to the host's administrator.
func Attribute(attr string) bool {
	if strings.HasPrefix(attr, "user.overlay.") { // an overlay above the scope would take it for its own
		return false
	}
	return strings.HasPrefix(attr, "user.") || attr == beneath.AccessACL || attr == beneath.DefaultACL
}

// OwnerEnters reports whether an ACL lets the owner list and enter a directory. An ACL is a header
// of 4 bytes and entries of tag, permissions and id: linux/posix_acl_xattr.h.
func OwnerEnters(acl []byte) bool {
	const userObj, readSearch = 0x01, 0o5
	for at := 4; at+8 <= len(acl); at += 8 {
		if binary.LittleEndian.Uint16(acl[at:]) == userObj {
			return binary.LittleEndian.Uint16(acl[at+2:])&readSearch == readSearch
		}
	}
	return true // the kernel refuses it
}
