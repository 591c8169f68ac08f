package account

import (
	"os"
	"strconv"
	"strings"
	"sync"
)

// HostUID returns the id outside this process's user namespace of a user inside it: user_namespaces(7), uid_map. It returns a
// user without one, such as the overflow user, unchanged.
func HostUID(uid uint32) uint32 { return hostID(uidMap(), uid) }

// uidMap returns the map of this process, which the kernel lets nobody write a second time.
var uidMap = sync.OnceValue(func() string {
	text, _ := os.ReadFile("/proc/self/uid_map")
	return string(text)
})

func hostID(idMap string, id uint32) uint32 {
	for line := range strings.Lines(idMap) {
		var n [3]uint64 // the first id inside, the first outside, how many
		f := strings.Fields(line)
		if len(f) != len(n) {
			continue
		}
		for i := range n {
			n[i], _ = strconv.ParseUint(f[i], 10, 32) // the kernel writes numbers
		}
		if at := uint64(id) - n[0]; uint64(id) >= n[0] && at < n[2] {
			return uint32(n[1] + at)
		}
	}
	return id
}
