package daemon

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// BenchmarkDurable measures what it takes that changes are on the disk before they
// are answered: calls of an agent and of one with durable: false take turns. It
// asserts nothing about time. The files are below TMPDIR.
func BenchmarkDurable(b *testing.B) {
	h := harness.LayOut(b, map[string]string{"a": "", "b": "durable: false"})
	h.Timeout = 10 * time.Minute
	h.Start()
	text := strings.Repeat("0123456789abcde\n", 256) // 4 KiB
	const clients = 8
	sides := map[string][]*harness.User{}
	for id := range map[string]bool{"a": true, "b": true} {
		for range clients {
			sides[id] = append(sides[id], h.Connect(id))
		}
		for i := range 100 {
			sides[id][0].Call("write_file", args{"path": fmt.Sprintf("tree/%d", i), "content": text})
		}
		sides[id][0].Call("write_file", args{"path": "over", "content": text})
		sides[id][0].Call("write_file", args{"path": "edited", "content": "first\n" + text})
	}
	fmt.Println("| operation | clients | durable: false, ms, p50 (p90) | durable | ratio |\n|---|---|---|---|---|")
	for _, o := range []struct {
		name    string
		n       int
		clients int
		do      func(u *harness.User, n string)
	}{
		{"write a new file, 4 KiB", 300, 1, func(u *harness.User, n string) {
			u.Call("write_file", args{"path": "new/" + n, "content": text})
		}},
		{"write a new file, 4 KiB", 100, clients, func(u *harness.User, n string) {
			u.Call("write_file", args{"path": "many/" + n, "content": text})
		}},
		{"write over a file, 4 KiB", 300, 1, func(u *harness.User, _ string) { u.Call("write_file", args{"path": "over", "content": text}) }},
		{"append a line", 300, 1, func(u *harness.User, _ string) {
			u.Call("write_file", args{"path": "log", "content": "line\n", "mode": "append"})
		}},
		{"edit in 4 KiB", 300, 1, func(u *harness.User, _ string) {
			u.Call("edit_file", args{"path": "edited", "edits": []args{{"old_text": "first", "new_text": "first"}, {"insert_line": 0, "new_text": "x"}}})
		}},
		{"move", 300, 1, func(u *harness.User, n string) { u.Call("move", args{"from": "new/" + n, "to": "moved-" + n}) }},
		{"delete_file", 300, 1, func(u *harness.User, n string) { u.Call("delete_file", args{"path": "moved-" + n}) }},
		{"copy 100 files of 4 KiB", 20, 1, func(u *harness.User, n string) {
			u.Call("copy", args{"from": "tree", "to": "tree-" + n, "recursive": true})
		}},
	} {
		var mu sync.Mutex
		took := map[string][]float64{}
		for i := range o.n {
			for _, id := range []string{"a", "b"} {
				var all sync.WaitGroup
				for c, u := range sides[id][:o.clients] {
					all.Go(func() {
						began := time.Now()
						o.do(u, fmt.Sprintf("%d-%d", i, c))
						ms := time.Since(began).Seconds() * 1000
						mu.Lock()
						defer mu.Unlock()
						took[id] = append(took[id], ms)
					})
				}
				all.Wait()
			}
		}
		at := func(id string, part float64) float64 {
			slices.Sort(took[id])
			return took[id][int(part*float64(len(took[id])))]
		}
		fmt.Printf("| %s | %d | %.2f (%.2f) | %.2f (%.2f) | %.1f× |\n", o.name, o.clients, at("b", .5), at("b", .9), at("a", .5), at("a", .9), at("a", .5)/at("b", .5))
	}
	require.False(b, b.Failed())
}
