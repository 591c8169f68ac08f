package state

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/scopefs/scopefs/internal/durable"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/approvals"
)

// Approvals stores calls that need the operator's approval, a file each. It implements approvals.Store.
type Approvals struct {
	root *os.Root
	host string
}

// storedApproval is the format of an approval's file.
type storedApproval struct {
	Host string `json:"host"` // hash of the operator's settings for all agents
	approvals.Approval
}

// maxApproval limits a file, in bytes. Arguments are limited to 16 MiB.
const maxApproval = 32 << 20

// OpenApprovals opens the approvals of a state directory. It returns those that an earlier daemon stored under the
// same settings, which host identifies, and removes the others. lost has an error for each file that could not be
// read. OpenApprovals removes that file too, so that its call needs a new approval.
func OpenApprovals(state string, host any) (a *Approvals, all []approvals.Approval, lost []error, err error) {
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

// load reads a file. It returns nil for a file that is no longer valid.
func (a *Approvals) load(name string) (*approvals.Approval, error) {
	if strings.HasPrefix(name, ".") { // a daemon was killed while it wrote the file
		return nil, nil
	}
	text, err := read(a.root, name, maxApproval)
	if err != nil {
		return nil, err
	}
	var k storedApproval
	if err := json.Unmarshal(text, &k); err != nil {
		return nil, err
	}
	if name != file(k.Approval) {
		return nil, errors.New("its content does not match its name")
	}
	switch {
	case k.Host == a.host:
	case k.State == approvals.Stands:
		return nil, fmt.Errorf("the standing approval of %s for %s has ended: scopefs.yaml has changed", k.Whose(), k.Tool)
	default:
		return nil, nil
	}
	return &k.Approval, nil
}

// ApprovalsOf returns the paths of the files with an agent's approvals.
func ApprovalsOf(state string, id scope.ID) (names []string) {
	root, err := os.OpenRoot(filepath.Join(state, "approvals"))
	if err != nil {
		return nil // there are none
	}
	defer root.Close()
	entries, _ := fs.ReadDir(root.FS(), ".")
	for _, e := range entries {
		var k storedApproval
		if text, err := read(root, e.Name(), maxApproval); err == nil && json.Unmarshal(text, &k) == nil && k.Agent == id {
			names = append(names, filepath.Join(state, "approvals", e.Name()))
		}
	}
	return names
}

// file returns the name of an approval's file. IDs are letters and digits.
func file(p approvals.Approval) string { return p.ID + ".json" }

// Put stores an approval. It returns nil once the file is on disk.
func (a *Approvals) Put(p approvals.Approval) error {
	text, err := tools.Marshal(storedApproval{a.host, p}) // an approval is for the exact bytes of the arguments
	if err != nil {
		return err
	}
	return durable.Replace(a.root, file(p), text, durable.Options{})
}

// Remove deletes an approval. It returns fs.ErrNotExist if the file is gone: another process has used or revoked the
// approval.
func (a *Approvals) Remove(p approvals.Approval) error {
	if err := a.root.Remove(file(p)); err != nil {
		return err
	}
	return durable.Sync(a.root.Open("."))
}
