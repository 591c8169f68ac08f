package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/fleet/order"
)

// FleetStream is the name of the stream that gives a node's events to the fleet.
const FleetStream = "fleet"

// Fleet is the NATS server, with JetStream, where nodes meet: the key fleet of scopefs.yaml.
type Fleet struct {
	NATS       string             // nats://HOST:PORT or tls://HOST:PORT; "": there is no fleet
	User       string             // "": the credential is a token
	Credential *credential.Source // nil: none
	Name       string             // of this node; "": only commands use the fleet
	Trust      []string           // keys of operators: see order.ParseKey

	Definitions bool // the node takes definitions of agents that keys of Trust have signed
}

// Signed returns the directory below {state} whose agents.d has the definitions of a node from its fleet; "": it takes none.
// Another name of the node or other keys lead to another directory, so that what a key signed ends with the trust in it.
func (f Fleet) Signed(state string) string {
	if f.Name == "" || len(f.Trust) == 0 || !f.Definitions {
		return ""
	}
	sum := sha256.Sum256([]byte(f.Name + "\n" + strings.Join(slices.Sorted(slices.Values(f.Trust)), "\n")))
	return filepath.Join(state, "fleet", "definitions", hex.EncodeToString(sum[:8]))
}

// field reads the key from one text as a whole: no server gets the credential of another one.
func (f *Fleet) field(file string) fields.Field {
	return func(n *yaml.Node) error {
		*f = Fleet{}
		err := fields.Mapping(map[string]fields.Field{
			"nats": fields.Text(&f.NATS), "user": fields.Text(&f.User), "credential": fields.Credential(&f.Credential), "name": fields.Text(&f.Name),
			"definitions": fields.Switch(&f.Definitions),
			"trust":       fields.Texts(&f.Trust, "trust", func(text string) error { return f.checkKey(text) }),
		})(n)
		if err != nil {
			return err
		}
		switch {
		case f.Name != "" && (!fields.IsPlainName(f.Name, 64) || strings.Contains(f.Name, ".")): // a dot divides subjects
			err = fmt.Errorf("name %q: write letters, digits, - and _", f.Name)
		case f.Name != "" && filepath.IsAbs(file):
			err = errors.New("name: names the node of one base: write fleet into the scopefs.yaml there")
		case f.Definitions && (f.Name == "" || len(f.Trust) == 0):
			err = errors.New("definitions: write name, and trust with the keys that sign them")
		case f.NATS == "":
			err = errors.New("write nats: nats://HOST:PORT")
		default:
			s := f.Stream()
			err = s.check()
		}
		if err != nil {
			return fmt.Errorf("fleet: %w", err)
		}
		return nil
	}
}

// checkKey checks a key of an operator.
func (f *Fleet) checkKey(text string) error {
	key, err := order.ParseKey(text)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(f.Trust, func(other string) bool {
		known, err := order.ParseKey(other)
		return err == nil && known.Name() == key.Name()
	}) {
		return fmt.Errorf("two keys have the name %q: a record of a decision would name both", key.Name())
	}
	return nil
}

// Stream returns the stream of the node's events. A subject ends in the agent's name.
func (f Fleet) Stream() Stream {
	name := f.Name
	if name == "" {
		name = "none"
	}
	return Stream{
		Name: FleetStream, NATS: f.NATS, Subject: "scopefs.events." + name, Stream: "scopefs_events", User: f.User, Credential: f.Credential,
		From: FromStart, Late: defaultLate, Node: f.Name, Definitions: f.Signed("") != "",
	}
}
