package file

import (
	"fmt"
	"strings"

	"github.com/scopefs/scopefs/tools"
)

const (
	maxDiff    = 64 << 10 // bytes
	maxEffort  = 400      // changed lines that are told apart; beyond, one block replaces another
	aroundDiff = 3        // lines
)

// change is a run of lines that are no more, and those in their place.
type change struct{ a, b, ae, be int } // [a,ae) of the old, [b,be) of the new

// diff is a unified diff of two texts (diff(1), -u), bounded.
func diff(name, before, after string) string {
	if before == after {
		return ""
	}
	a, b := lines(before), lines(after)
	var out strings.Builder
	fmt.Fprintf(&out, "--- %s\n+++ %s\n", tools.Quote("a/"+name), tools.Quote("b/"+name))
	all := changes(a, b)
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].a-all[n-1].ae <= 2*aroundDiff {
			n++
		}
		if out.Len() > maxDiff {
			fmt.Fprintf(&out, "[%d more changes]\n", len(all))
			break
		}
		hunk(&out, a, b, all[:n])
		all = all[n:]
	}
	if s := out.String(); len(s) > maxDiff+1<<10 {
		return strings.ToValidUTF8(s[:maxDiff], "") + "\n[cut]\n"
	}
	return out.String()
}

func lines(s string) (all []string) {
	for line := range strings.Lines(s) {
		all = append(all, line)
	}
	return all
}

func hunk(out *strings.Builder, a, b []string, all []change) {
	first, last := all[0], all[len(all)-1]
	before := min(aroundDiff, first.a)
	after := min(aroundDiff, len(a)-last.ae)
	fmt.Fprintf(out, "@@ -%s +%s @@\n", span(first.a-before, last.ae+after), span(first.b-before, last.be+after))
	at := first.a - before
	for _, c := range all {
		put(out, ' ', a[at:c.a])
		put(out, '-', a[c.a:c.ae])
		put(out, '+', b[c.b:c.be])
		at = c.ae
	}
	put(out, ' ', a[at:at+after])
}

// span is a range of lines as a hunk's head has it.
func span(from, to int) string {
	switch to - from {
	case 0:
		return fmt.Sprintf("%d,0", from)
	case 1:
		return fmt.Sprint(from + 1)
	}
	return fmt.Sprintf("%d,%d", from+1, to-from)
}

func put(out *strings.Builder, mark byte, lines []string) {
	for _, line := range lines {
		out.WriteByte(mark)
		out.WriteString(line)
		if !strings.HasSuffix(line, "\n") {
			out.WriteString("\n\\ No newline at end of file\n")
		}
		if out.Len() > 2*maxDiff {
			return
		}
	}
}

// changes finds a shortest list of changes that make b of a: E. Myers, An O(ND)
// Difference Algorithm and Its Variations (1986), with a bound on D.
func changes(a, b []string) []change {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	x, y := a[head:len(a)-tail], b[head:len(b)-tail]
	trace, ok := steps(x, y)
	if !ok {
		return []change{{head, head, head + len(x), head + len(y)}}
	}
	return back(trace, len(x), len(y), head)
}

// steps goes from both texts' beginnings to their ends in as few steps as can
// be, and returns how far each diagonal was after each step.
func steps(a, b []string) (trace [][]int, ok bool) {
	v := make([]int, 2*maxEffort+3)
	for d := 0; d <= maxEffort; d++ {
		trace = append(trace, append([]int(nil), v[maxEffort-d:maxEffort+d+3]...))
		for k := -d; k <= d; k += 2 {
			at := maxEffort + 1 + k
			x := v[at-1] + 1
			if k == -d || k != d && v[at-1] < v[at+1] {
				x = v[at+1]
			}
			for x < len(a) && x-k < len(b) && a[x] == b[x-k] {
				x++
			}
			v[at] = x
			if x >= len(a) && x-k >= len(b) {
				return trace, true
			}
		}
	}
	return nil, false
}

// back follows the trace from the ends and joins neighbouring steps.
func back(trace [][]int, x, y, head int) []change {
	var all []change
	for d := len(trace) - 1; d > 0; d-- {
		v, k := trace[d], x-y // v[i] is of diagonal i-d-1
		down := k == -d || k != d && v[k+d] < v[k+d+2]
		px := v[k+d]
		if down {
			px = v[k+d+2]
		}
		c := change{a: px, ae: px}
		if down {
			c.b = px - (k + 1)
			c.be = c.b + 1
		} else {
			c.ae++
			c.b = px - (k - 1)
			c.be = c.b
		}
		x, y = px, c.b
		c = change{c.a + head, c.b + head, c.ae + head, c.be + head}
		if n := len(all); n > 0 && all[n-1].a == c.ae && all[n-1].b == c.be {
			all[n-1].a, all[n-1].b = c.a, c.b
		} else {
			all = append(all, c)
		}
	}
	for i, j := 0, len(all)-1; i < j; i, j = i+1, j-1 {
		all[i], all[j] = all[j], all[i]
	}
	return all
}
