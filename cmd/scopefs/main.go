// Command scopefs gives every agent its own view of its own files.
//
// It is small, so that it starts at once. What needs more than a daemon's answer, scopefsd does in its place, with the same process id.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/scopefs/scopefs/internal/companion"
	"github.com/scopefs/scopefs/internal/front"
	"github.com/scopefs/scopefs/internal/version"
)

func main() {
	if len(os.Args) == 2 && (os.Args[1] == "version" || os.Args[1] == "--version") {
		if _, err := fmt.Printf("scopefs %s\n", version.Text()); err != nil {
			os.Exit(1)
		}
		return
	}
	if status, done := front.Main(context.Background(), os.Args[1:]); done {
		os.Exit(status)
	}
	fmt.Fprintln(os.Stderr, "scopefs:", companion.Exec("scopefsd", os.Args...))
	os.Exit(1)
}
