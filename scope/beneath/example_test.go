package beneath_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// A Root opens files below its directory, and nothing else.
func Example() {
	base, err := os.MkdirTemp("", "scope")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(base)
	for _, err := range []error{
		os.MkdirAll(filepath.Join(base, "agent/notes"), 0o755),
		os.WriteFile(filepath.Join(base, "secret"), []byte("not the agent's"), 0o644),
		os.Symlink("../secret", filepath.Join(base, "agent/link")),
	} {
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	root, err := beneath.OpenRoot(base, "agent")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer root.Close()

	dir, err := root.Dir("notes") // one walk, then one name
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dir.Close()
	file, err := dir.Create("today.md", unix.O_RDWR, 0o644)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer file.Close()
	n, err := file.WriteAt([]byte("hello"), 0, false)
	fmt.Println(n, err)

	_, err = root.Resolve("link")
	violation, _ := errors.AsType[*beneath.Violation](err)
	fmt.Println(violation.Rule, violation.Target, errors.Is(err, beneath.ErrEscape))
	_, err = root.Dir("notes/../..")
	fmt.Println(errors.Is(err, beneath.ErrEscape))
	// Output:
	// 5 <nil>
	// resolution: link leads outside ../secret true
	// true
}
