package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/scopefs/scopefs/tools"
)

// Approvals are files of calls that the operator is to approve. It is a
// tools.ApprovalStore.
type Approvals struct {
	root *os.Root
	host string
}

// kept is an approval as a file has it.
type kept struct {
	Host string `json:"host"` // hash of what the operator had set for all agents
	tools.Approval
}

// maxApproval bounds a file, in bytes. Arguments have 16 MiB at most.
const maxApproval = 32 << 20

// OpenApprovals opens the approvals of a state directory and returns those that an
// earlier daemon kept under the same settings; host is what identifies these.
// Others it removes. lost says which files it could not read: they are removed,
// too, so that the call is asked about anew.
func OpenApprovals(state string, host any) (a *Approvals, all []tools.Approval, lost []error, err error) {
	text, err := json.Marshal(host)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("state: %w", err)
	}
	root, err := open(state, "approvals")
	if err != nil {
		return nil, nil, nil, err
	}
	sum := sha256.Sum256(text)
	a = &Approvals{root, hex.EncodeToString(sum[:])}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, nil, nil, errors.Join(fmt.Errorf("state: %w", err), root.Close())
	}
	for _, e := range entries {
		p, err := a.load(e.Name())
		switch {
		case err != nil:
			lost = append(lost, fmt.Errorf("state: approvals/%s: %w", e.Name(), err))
		case p != nil:
			all = append(all, *p)
			continue
		}
		_ = root.Remove(e.Name())
	}
	return a, all, lost, nil
}

// load reads a file; nil is one that does not count any more.
func (a *Approvals) load(name string) (*tools.Approval, error) {
	if strings.HasPrefix(name, ".") { // a daemon was killed while it wrote it
		return nil, nil
	}
	text, err := read(a.root, name, maxApproval)
	if err != nil {
		return nil, err
	}
	var k kept
	if err := json.Unmarshal(text, &k); err != nil {
		return nil, err
	}
	if name != file(k.Approval) {
		return nil, errors.New("it is not what its name says")
	}
	if k.Host != a.host {
		return nil, nil
	}
	return &k.Approval, nil
}

// file is the name of an approval's file. IDs are letters and digits.
func file(p tools.Approval) string { return p.ID + ".json" }

// Put stores an approval.
func (a *Approvals) Put(p tools.Approval) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false) // an approval is for the very bytes of the arguments
	if err := enc.Encode(kept{a.host, p}); err != nil {
		return err
	}
	return replace(a.root, file(p), text.Bytes())
}

// Remove deletes an approval. That its file is gone already is an error: whoever
// removed it has used it, or made it void.
func (a *Approvals) Remove(p tools.Approval) error {
	if err := a.root.Remove(file(p)); err != nil {
		return err
	}
	return syncDir(a.root)
}
