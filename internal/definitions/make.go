package definitions

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// maxText limits the text of a definition, in bytes.
const maxText = 1 << 20

// Made is a definition that somebody else than the operator has made, by the operator's rules. The operator's own are
// never replaced and never removed.
type Made struct {
	ID     scope.ID
	Text   string
	Narrow string // the keys of its TrustedName; "": none
	Varies bool   // Narrow may be another one by now: then the definition is the same
}

// Make writes the definition, unless it is there.
func (m Made) Make(p config.Paths) error {
	there, err := m.There(p)
	if err != nil || there {
		return err
	}
	trusted := filepath.Join(p.Base, agents.TrustedName(m.ID))
	if m.Narrow == "" {
		err = gone(os.Remove(trusted)) // of a make that was interrupted
	} else {
		err = Write(trusted, []byte(m.Narrow), 0o644, true) // before the definition, which is never in force without it
	}
	if err == nil {
		err = Write(ownFile(p, m.ID), []byte(m.Text), 0o644, false)
	}
	return err
}

// Narrowed reports whether Narrow is what is there.
func (m Made) Narrowed(p config.Paths) (bool, error) {
	text, err := m.narrow(p)
	return err == nil && text == m.Narrow, err
}

// Renarrow replaces the keys of TrustedName of a definition that is there.
func (m Made) Renarrow(p config.Paths) error {
	there, err := m.There(p)
	if err == nil && !there {
		err = fmt.Errorf("%s: is gone", ownFile(p, m.ID))
	}
	if err != nil {
		return err
	}
	return Write(filepath.Join(p.Base, agents.TrustedName(m.ID)), []byte(m.Narrow), 0o644, true)
}

// Remove removes the definition, if it is there.
func (m Made) Remove(p config.Paths) error {
	there, err := m.There(p)
	if err != nil || !there {
		return err
	}
	return errors.Join(os.Remove(ownFile(p, m.ID)), gone(os.Remove(filepath.Join(p.Base, agents.TrustedName(m.ID)))))
}

// There reports whether the definition is there. It is an error that another one is.
func (m Made) There(p config.Paths) (bool, error) {
	text, err := bounded.File(ownFile(p, m.ID), maxText)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	narrow, err := m.narrow(p)
	if err != nil {
		return false, err
	}
	if string(text) != m.Text || narrow != m.Narrow && !m.Varies {
		return false, fmt.Errorf("%s: an agent %q is defined otherwise: choose another name", ownFile(p, m.ID), m.ID)
	}
	return true, nil
}

func (m Made) narrow(p config.Paths) (string, error) {
	text, err := bounded.File(filepath.Join(p.Base, agents.TrustedName(m.ID)), maxText)
	return string(text), gone(err)
}

// gone returns no error for a file that is not there.
func gone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
