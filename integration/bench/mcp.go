package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// mcpBlock is how many calls one client makes in a row.
const mcpBlock = 100

// mcpOp is one row: the call, for each of two servers. No tool: it has none.
type mcpOp struct {
	name   string
	scopes request // relative to the workspace
	files  request // likewise, and made absolute
	bytes  int     // that the result must have at least
}

// request gives the arguments of the nth call. The tool "" is no tool: with the
// method alone.
type request struct {
	method, tool string
	args         func(n int) map[string]any
	meta         map[string]any // _meta of a call, of the raw client
}

func call(tool string, args func(n int) map[string]any) request {
	return request{method: "tools/call", tool: tool, args: args}
}

var mcpText = strings.Repeat("0123456789abcde\n", 256) // 4 KiB

func mcpOps() []mcpOp {
	is := func(args map[string]any) func(int) map[string]any { return func(int) map[string]any { return args } }
	file, dir := map[string]any{"path": "read"}, map[string]any{"path": "dir"}
	names := map[string]any{"path": "dir", "names_only": true}
	write := is(map[string]any{"path": "written", "content": mcpText})
	edit := func(before, after string) func(int) map[string]any {
		words := [2]string{"first", "other"}
		return func(n int) map[string]any {
			return map[string]any{"path": "edited", "edits": []any{map[string]any{before: words[n%2], after: words[1-n%2]}}}
		}
	}
	list, ping := request{method: "tools/list"}, request{method: "ping"}
	return []mcpOp{
		{"ping", ping, ping, 0},
		{"read 4 KiB", call("read_file", is(file)), call("read_text_file", is(file)), len(mcpText)},
		{"list 50 names", call("list_dir", is(names)), call("list_directory", is(dir)), 50 * len("f00")},
		{"list 50 files with sizes", call("list_dir", is(dir)), call("list_directory_with_sizes", is(dir)), 50 * len("f00")},
		{"write 4 KiB", call("write_file", write), call("write_file", write), 0},
		{"edit in 4 KiB", call("edit_file", edit("old_text", "new_text")), call("edit_file", edit("oldText", "newText")), len("-first+other")},
		{"list tools", list, list, 1000},
		{"bash true", call("bash", is(map[string]any{"command": "true"})), request{}, 0},
	}
}

// mcpCompare measures calls of MCP tools over standard input and output, of
// scopefs and of server-filesystem, each with two clients.
func mcpCompare(args arguments) error {
	var count, warm int
	if err := args.numbers(&count, &warm); err != nil {
		return err
	}
	count, warm = count+count%2, warm+warm%2 // an edit takes back the one before
	top, plain, scopefs, base, node, server := args[2], args[3], args[4], args[5], args[6], args[7]
	for _, root := range []string{top, plain} {
		if err := mcpFiles(root); err != nil {
			return err
		}
	}
	var sides []*mcpSide
	defer func() {
		for _, s := range sides {
			s.close()
		}
	}()
	for _, client := range []string{"Go SDK", "raw"} {
		for _, root := range []string{plain, ""} {
			cmd := exec.Command(node, server, plain)
			if root == "" {
				cmd = exec.Command(scopefs, "--base", base, "mcp", "--agent", "bench")
			}
			s, err := newMCPSide(client, root, cmd)
			if err != nil {
				return fmt.Errorf("%v: %w", cmd.Args, err)
			}
			sides = append(sides, s)
		}
	}
	fmt.Println("| operation | client | server-filesystem µs, p50 (p90) | scopefs | ratio |\n|---|---|---|---|---|")
	for _, o := range mcpOps() {
		if err := o.measure(sides, count, warm); err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
	}
	return nil
}

// mcpFiles makes what the calls are about.
func mcpFiles(root string) error {
	if err := os.MkdirAll(filepath.Join(root, "dir"), 0o755); err != nil {
		return err
	}
	files := map[string]string{"read": mcpText, "edited": "first\n" + mcpText[6:]}
	for i := range 50 {
		files[fmt.Sprintf("dir/f%02d", i)] = "x"
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// measure prints a row for each client.
func (o mcpOp) measure(sides []*mcpSide, count, warm int) error {
	times := make([][]float64, len(sides))
	made := make([]int, len(sides))
	run := func(k, n int, keep bool) error {
		r := o.scopes
		if sides[k].root != "" {
			r = o.files
		}
		if r.method == "" {
			return nil
		}
		for range n {
			took, size, err := sides[k].call(r, made[k])
			if err != nil {
				return fmt.Errorf("%s: %w", sides[k].client, err)
			}
			if size < o.bytes {
				return fmt.Errorf("%s: the result has %d bytes", sides[k].client, size)
			}
			made[k]++
			if keep {
				times[k] = append(times[k], float64(took.Nanoseconds())/1e3)
			}
		}
		return nil
	}
	for k := range sides {
		if err := run(k, warm, false); err != nil {
			return err
		}
	}
	for block := 0; block*mcpBlock < count; block++ {
		for i := range sides {
			k := (i + block) % len(sides) // nobody is always first
			if err := run(k, min(mcpBlock, count-block*mcpBlock), true); err != nil {
				return err
			}
		}
	}
	for k := 0; k < len(sides); k += 2 {
		theirs, ours := times[k], times[k+1]
		row := fmt.Sprintf("| %s | %s | – | %s | |", o.name, sides[k].client, spread(ours))
		if len(theirs) > 0 {
			row = fmt.Sprintf("| %s | %s | %s | %s | %.2f× |", o.name, sides[k].client, spread(theirs), spread(ours), median(ours)/median(theirs))
		}
		fmt.Println(row)
	}
	return nil
}

// spread is the median and the 90th of 100.
func spread(v []float64) string {
	return fmt.Sprintf("%.0f (%.0f)", median(v), v[len(v)*9/10]) // median sorts
}
