package view

import (
	"errors"
	"os"
	"os/exec"
	"strings"

	"github.com/scopefs/scopefs/internal/usage"
	"github.com/scopefs/scopefs/internal/view/wire"
)

// joinQuota returns the view's share of the agent's quota; nil: there is none. last is the view that is taken over, or nil.
func (v *View) joinQuota(last *leftView) (*usage.Share, error) {
	slot, page := usage.Main, (*os.File)(nil)
	switch {
	case last != nil && last.Config.Quota != nil:
		slot, page = *last.Config.Quota, last.place.Files[heldFiles]
	case v.def.Home != "" && strings.HasSuffix(string(v.def.Name), "-"+string(v.def.Home)):
		slot = usage.Home
	case v.def.Home != "": // of the branch of --changes held: counted twice while both have it
		slot = -1
	case v.def.Branch != "":
		slot = -1
	}
	return v.host.Quotas.Join(usage.OwnerOf(v.def), slot, page)
}

// counts returns an error if the view counts in another page than this; nil is none.
func (l *leftView) counts(page *os.File) error {
	if page == nil {
		return nil
	}
	a, err := page.Stat()
	if err != nil {
		return err
	}
	b, err := l.place.Files[heldFiles].Stat()
	if err == nil && !os.SameFile(a, b) {
		err = errors.New("the agent's other views count what they use elsewhere")
	}
	return err
}

// files returns how many files the holder has of a view: the page of the quota, and then the lock of what it holds, are the last.
func (l *leftView) files() int {
	n := heldFiles
	for _, has := range []bool{l.Config.Quota != nil, l.locked()} {
		if has {
			n++
		}
	}
	return n
}

// passQuota makes a view process have the page of the quota; nil is none. The holder gets it, too.
func (p *served) passQuota(cmd *exec.Cmd, page *os.File) error {
	if page == nil {
		return nil
	}
	for 3+len(cmd.ExtraFiles) < wire.QuotaFD {
		cmd.ExtraFiles = append(cmd.ExtraFiles, nil)
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, page)
	if p.held == nil {
		return nil
	}
	dup, err := usage.Dup(page)
	if err == nil {
		p.held = append(p.held, dup)
	}
	return err
}
