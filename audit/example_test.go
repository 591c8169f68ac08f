package audit_test

import (
	"context"
	"fmt"
	"os"

	"github.com/scopefs/scopefs/audit"
)

// An event is in the log when Append returns.
func Example() {
	dir, err := os.MkdirTemp("", "audit")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	log, err := audit.Open(dir, audit.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	for _, e := range []audit.Event{
		{Event: audit.KindFile, Agent: "research-01", Op: "open", Path: "notes.md", Verdict: audit.Allow},
		{Event: audit.KindFile, Agent: "research-01", Op: "open", Path: "line\nbreak", Verdict: audit.Deny, Rule: "**/line*: hide", RuleKind: "path"},
	} {
		if _, err := log.Append(ctx, e); err != nil {
			fmt.Println(err)
			return
		}
	}
	if err := log.Close(); err != nil {
		fmt.Println(err)
		return
	}
	for e, err := range audit.Read(ctx, dir, audit.Filter{Denied: true}, false) {
		if err != nil {
			fmt.Println(err)
			continue
		}
		name, err := audit.Unescape(e.Path)
		fmt.Printf("%d %s %s %q %v\n", e.Seq, e.Op, e.Verdict, name, err)
	}
	// Output:
	// 2 open deny "line\nbreak" <nil>
}
