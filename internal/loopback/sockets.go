package loopback

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// maxTable bounds what is read of a table of sockets, in bytes: 10,000 lines. An agent's sandbox can have more sockets.
const maxTable = 1_500_000

// listening is the state of a socket that listens: proc_net_tcp(5).
const listening = "0A"

// socket is a TCP socket that listens.
type socket struct {
	at    netip.AddrPort
	inode string
}

// Listening returns the ports at which a process in the network namespace of pid listens for TCP connections to 127.0.0.1 or ::1,
// sorted. Whoever asks needs no right to that process. Where the namespace has no more TCP sockets than those that the caller knows,
// it returns none: the kernel makes the tables by a walk through all sockets of the host, which takes milliseconds.
func Listening(pid, known int) (ports []uint16) {
	if n, err := socketsIn(pid); err == nil && n <= known {
		return nil
	}
	for _, s := range socketsOf(pid) {
		if at := s.at.Addr().Unmap(); at.IsLoopback() || at.IsUnspecified() {
			ports = append(ports, s.at.Port())
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// Own reports whether this process has a socket that listens at a port, at any address.
func Own(port uint16) bool {
	var inodes []string
	for _, s := range socketsOf(os.Getpid()) {
		if s.at.Port() == port {
			inodes = append(inodes, "socket:["+s.inode+"]")
		}
	}
	if inodes == nil {
		return false
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return true // nothing says that it has not
	}
	for _, fd := range open {
		if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); slices.Contains(inodes, to) {
			return true
		}
	}
	return false
}

// RefusedIn returns how many TCP connections in the network namespace of pid were refused, or given up: AttemptFails of RFC 4022.
func RefusedIn(pid int) int {
	f, err := os.Open(fmt.Sprintf("/proc/%d/net/snmp", pid))
	if err != nil {
		return 0
	}
	defer f.Close()
	var names []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || words[0] != "Tcp:" {
			continue
		}
		if i := slices.Index(names, "AttemptFails"); i >= 0 && i < len(words) {
			n, _ := strconv.Atoi(words[i])
			return n
		}
		names = words
	}
	return 0
}

// socketsOf returns the TCP sockets that listen in the network namespace of a process.
func socketsOf(pid int) (all []socket) {
	for _, table := range tables {
		if n, err := inUse(pid, table); err == nil && n == 0 {
			continue
		}
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			continue // the host has no IPv6, or the process is gone
		}
		all = append(all, listeners(io.LimitReader(f, maxTable))...)
		f.Close()
	}
	return all
}

// listeners returns the sockets that listen of a table. It reads no further: the table has them first (Documentation/networking/proc_net_tcp.rst
// of Linux), and the kernel walks through all connections of the host for the rest, which takes ten milliseconds.
func listeners(table io.Reader) (all []socket) {
	lines := bufio.NewScanner(table)
	for lines.Scan(); lines.Scan(); { // behind the heading
		words := strings.Fields(lines.Text())
		if len(words) < 10 || words[3] != listening {
			break
		}
		if at, ok := parseAddress(words[1]); ok {
			all = append(all, socket{at, words[9]})
		}
	}
	return all
}

// socketsIn returns how many TCP sockets are bound to a peer or listen in the network namespace of a process, without those that wait
// after their end.
func socketsIn(pid int) (n int, err error) {
	for _, table := range tables {
		in, err := inUse(pid, table)
		if err != nil {
			return 0, err
		}
		n += in
	}
	return n, nil
}

// tables are the tables of TCP sockets in /proc/PID/net.
var tables = []string{"tcp", "tcp6"}

// inUse returns how many sockets of a table are: "inuse" of /proc/PID/net/sockstat and sockstat6.
func inUse(pid int, table string) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/sockstat%s", pid, strings.TrimPrefix(table, "tcp")))
	if errors.Is(err, fs.ErrNotExist) && table == "tcp6" {
		return 0, nil // the host has no IPv6
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) >= 3 && words[0] == strings.ToUpper(table)+":" && words[1] == "inuse" {
			return strconv.Atoi(words[2])
		}
	}
	return 0, err
}

// parseAddress parses an address of a table: words of 32 bits in the order of the host's bytes, and the port. Our hosts are
// little-endian.
func parseAddress(text string) (at netip.AddrPort, ok bool) {
	host, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(host)
	n, wrong := strconv.ParseUint(port, 16, 16)
	if err != nil || wrong != nil || len(raw) != 4 && len(raw) != 16 {
		return at, false
	}
	for word := range slices.Chunk(raw, 4) {
		slices.Reverse(word)
	}
	ip, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(ip, uint16(n)), ok
}
