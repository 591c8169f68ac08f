package scope_test

import (
	"fmt"

	"github.com/scopefs/scopefs/scope"
)

// A policy decides about operations on paths. Of the rules that match, the most
// restrictive one holds.
func Example() {
	policy, err := scope.Compile(scope.PolicySpec{
		Access: scope.Write,
		Paths: []scope.PathRule{
			{Pattern: "reference/**", Access: scope.Read},
			{Pattern: "**/.env", Access: scope.Hide},
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range []struct {
		op  scope.Op
		rel string
	}{
		{scope.OpOpenWrite, "notes.md"},
		{scope.OpOpen, "reference/paper.pdf"},
		{scope.OpUnlink, "reference/paper.pdf"},
		{scope.OpOpen, "reference/.env"},
	} {
		d := policy.File(c.op, c.rel)
		fmt.Printf("%s %s: allow %v, hidden %v (%s)\n", c.op, c.rel, d.Allow, d.Hidden, d.Rule)
		if remedy := policy.Remedy(c.op, c.rel); remedy != "" {
			fmt.Println("  to allow it:", remedy)
		}
	}
	// Output:
	// open-write notes.md: allow true, hidden false (access: write)
	// open reference/paper.pdf: allow true, hidden false (reference/**: read)
	// unlink reference/paper.pdf: allow false, hidden false (reference/**: read)
	//   to allow it: set "reference/**" to write in view.paths or remove it
	// open reference/.env: allow false, hidden true (**/.env: hide)
	//   to allow it: set "**/.env" to read in view.paths or remove it
}
