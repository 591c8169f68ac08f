package config

import (
	"errors"
	"net/netip"
	"net/url"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/header"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
)

// Channel is a place that agents may send notifications to.
type Channel struct {
	Kind       string     // slack, discord, ntfy, matrix, email or webhook
	URL        *url.URL   // nil: the credential is the URL
	Agents     agents.IDs // that may use it; nil: every one
	Room       string     // of Matrix
	From       string     // of an e-mail
	To         []string   // of an e-mail
	User       string     // at an SMTP server
	Credential *credential.Source
	Header     string // of a webhook, for the credential; "": Authorization
	Prefix     string // of a webhook, before the credential
	Addresses  []netip.Prefix
	Rate       int           // notifications of an agent in a minute; 0: the default
	Timeout    time.Duration // 0: the default
}

// Allows reports whether an agent may use the channel.
func (c Channel) Allows(p scope.Principal) bool {
	return c.Agents == nil || c.Agents.Holds(p)
}

func (c *Channel) read(_ string, n *yaml.Node) error {
	var wrong fields.Problems
	wrong.Add(n.Line, fields.Mapping(map[string]fields.Field{
		"kind":       fields.Text(&c.Kind),
		"url":        storeURLField(&c.URL),
		"agents":     fields.Texts((*[]string)(&c.Agents), "agents", catalog.CheckName),
		"room":       fields.Text(&c.Room),
		"from":       fields.Text(&c.From),
		"to":         fields.Texts(&c.To, "to", nil),
		"user":       fields.Text(&c.User),
		"credential": fields.Credential(&c.Credential),
		"header":     fields.Text(&c.Header),
		"prefix":     fields.Text(&c.Prefix),
		"addresses":  prefixesField(&c.Addresses),
		"rate":       fields.Number(&c.Rate, fields.ParseCount, "!!int"),
		"timeout":    fields.Duration(&c.Timeout),
	})(n))
	wrong.Add(n.Line, header.Check(c.Header, c.Prefix))
	return wrong.Err()
}

// storeURLField reads an absolute URL.
func storeURLField(out **url.URL) fields.Field {
	return func(n *yaml.Node) error {
		var text string
		if err := fields.Text(&text)(n); err != nil {
			return err
		}
		u, err := url.Parse(text)
		if err != nil || u.Hostname() == "" {
			return errors.New("is no address: write https://HOST/PATH")
		}
		*out = u
		return nil
	}
}
