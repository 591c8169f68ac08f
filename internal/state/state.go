// Package state stores in {state} the data that must survive a restart of the daemon:
//
//	approvals/ID.json   a call that waits for the operator's decision, or has it;
//	                    removed when the approval is used or expires
//	rates/AGENT         the used part of each of an agent's rate_limits
//	unfinished/         the calls of file tools that may leave a temporary file
//	definitions/        the hashes of definitions that have loaded
//	roots/              the directories that commands have lent to agents
//	series/AGENT        a command that changes several directories of an agent
//
// {state} also has audit/, which package audit writes, http.key, the key of HTTP tokens, tokens.json, what these are for,
// http.old, when those without an end end, and home/, the HOME directories of agents. Only the daemon's user can read these
// files, because an approval contains a call's arguments.
//
// A file of approvals/ is written under another name, synced and renamed, and then its directory is synced. So approvals
// survive a power loss. Rates, unfinished/ and definitions/ are not synced. They survive a crash of the daemon, and after a
// power loss may be half a minute old.
package state

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/durable"
)

// open opens a directory of {state} and creates it (mode 0700) if it does not exist.
func open(state, name string) (*os.Root, error) {
	dir := filepath.Join(state, name)
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.Chmod(dir, 0o700)
	}
	var root *os.Root
	if err == nil {
		root, err = os.OpenRoot(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	return root, nil
}

// read returns the content of a file. It returns an error for more than max bytes.
func read(root *os.Root, name string, max int) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := bounded.Read(f, max)
	if errors.Is(err, bounded.ErrTooLong) {
		err = fmt.Errorf("%s %w", name, err)
	}
	return text, err
}

// Heads is the directory of {state} with the heads that witnesses have signed.
const Heads = "heads"

// SaveHead keeps a head of the log with the signature of a witness.
func SaveHead(state, name string, signed []byte) error {
	root, err := open(state, Heads)
	if err != nil {
		return err
	}
	defer root.Close()
	return durable.Replace(root, name, signed, durable.Options{})
}

const maxHead = 256 << 10 // bytes

// SignedHeads returns the heads that SaveHead has kept, by the paths of their files. Without any it returns none.
func SignedHeads(state string) (map[string]io.Reader, error) {
	dir := filepath.Join(state, Heads)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	all := map[string]io.Reader{}
	for _, e := range entries {
		if name := filepath.Join(dir, e.Name()); err == nil && e.Type().IsRegular() && !strings.HasPrefix(e.Name(), ".") {
			var text []byte
			text, err = bounded.File(name, maxHead)
			all[name] = bytes.NewReader(text)
		}
	}
	return all, err
}
