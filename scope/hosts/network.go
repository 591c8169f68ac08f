package hosts

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/internal/header"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/network"
)

// Kind says how much of the network a sandbox has.
type Kind string

// The kinds of networks, from the least to the greatest.
const (
	None        Kind = "none"  // nothing; the default
	Rules       Kind = "rules" // the hosts that rules allow, through the daemon's proxy
	HostNetwork Kind = "host"  // the host's network
)

// Network is the network of a sandbox, as a definition has it.
type Network struct {
	Kind        Kind // "" is none
	Rules       network.Spec
	Presets     []string              // whose rules are added
	Credentials map[string]Credential // by HostRule.Secret, the name of the variable
	Requests    []scope.Rate          // of requests and connections
	Bytes       []scope.Rate          // of bytes in both directions
	Ports                             // of an agent's own network alone
}

// Credential is a secret that the proxy adds to the requests to a host. The
// sandbox has a placeholder in the variable that HostRule.Secret names.
type Credential struct {
	Header string // "": Authorization
	Format string // of the header's value, with one %s; "": %s
	From   credential.Source
}

// Field reads none, host, or a mapping of rules without ports. It appends to refs the
// presets, which must exist; nil refs refuses presets.
func Field(out *Network, refs *[]catalog.Ref) fields.Field {
	return fields.Checked(OwnField(out, refs), func() error {
		if !out.Ports.none() {
			return errors.New("publish and host: are for the agent's own network: remove them here")
		}
		return nil
	})
}

// OwnField is Field for an agent's own network, which has ports.
func OwnField(out *Network, refs *[]catalog.Ref) fields.Field {
	return func(n *yaml.Node) error {
		switch kind := Kind(n.Value); {
		case n.Kind == yaml.SequenceNode:
			return fmt.Errorf("is a list: write %s", allowLine(n.Content))
		case n.Kind == yaml.ScalarNode && kind != None && kind != HostNetwork && strings.Contains(n.Value, "."):
			return fmt.Errorf("%q is a host: write %s", n.Value, allowLine([]*yaml.Node{n}))
		case n.Kind == yaml.ScalarNode && n.ShortTag() != "!!str":
			return fmt.Errorf("is %q: write none, host or {allow: [HOST]}", n.Value)
		case n.Kind != yaml.MappingNode:
			*out = Network{Kind: out.Kind}
			return fields.OneOf(&out.Kind, None, HostNetwork)(n)
		}
		*out = Network{Kind: Rules}
		err := fields.Mapping(map[string]fields.Field{
			"deny":    hostsField(&out.Rules.Deny, func(r network.HostRule) network.Spec { return network.Spec{Deny: []network.HostRule{r}} }, out),
			"ask":     askField(out),
			"allow":   allowField(out),
			"presets": presetsField(out, refs),
			"publish": publishField(&out.Published),
			"host":    fields.Mapping(map[string]fields.Field{"ports": ownPorts(&out.Host)}),
			"limit": fields.Mapping(map[string]fields.Field{
				"requests": rateField(&out.Requests, "requests", fields.ParseCount, "60/minute"),
				"bytes":    rateField(&out.Bytes, "bytes", parseBytes, "1GiB/day"),
			}),
		})(n)
		if err == nil {
			if _, wrong := network.Compile(out.Rules); wrong != nil {
				err = fmt.Errorf("network: %w", wrong)
			}
		}
		return err
	}
}

// allowLine returns the line that allows hosts.
func allowLine(items []*yaml.Node) string {
	var names []string
	for _, item := range items[:min(len(items), 8)] {
		if item.Kind == yaml.ScalarNode {
			names = append(names, frontmatter.Quote(item.Value))
		}
	}
	return "network: {allow: [" + strings.Join(names, ", ") + "]}"
}

// hostOfURL returns the host of a URL, "" for another text.
func hostOfURL(text string) string {
	if !strings.Contains(text, "/") {
		return ""
	}
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

func allowField(out *Network) fields.Field {
	return hostsField(&out.Rules.Allow, func(r network.HostRule) network.Spec { return network.Spec{Allow: []network.HostRule{r}} }, out)
}

// askField reads true, false or a list of hosts.
func askField(out *Network) fields.Field {
	hosts := hostsField(&out.Rules.Ask, func(r network.HostRule) network.Spec { return network.Spec{Ask: []network.HostRule{r}} }, out)
	return func(n *yaml.Node) error {
		if n.Kind == yaml.ScalarNode {
			return fields.Switch(&out.Rules.Others)(n)
		}
		return hosts(n)
	}
}

// hostsField reads a list of hosts, each a name or a mapping. alone returns the
// policy that has one rule, for its errors.
func hostsField(out *[]network.HostRule, alone func(network.HostRule) network.Spec, of *Network) fields.Field {
	return func(n *yaml.Node) error {
		return fields.EachItem(n, func(item *yaml.Node) error {
			rule := network.HostRule{}
			err := fields.Text(&rule.Host)(item)
			if item.Kind == yaml.MappingNode {
				err = fields.Mapping(hostFields(&rule, of))(item)
			}
			if err != nil {
				return fmt.Errorf("network: an entry %w", err)
			}
			if host := hostOfURL(rule.Host); host != "" {
				return fmt.Errorf("network: %q is a URL: write %s", rule.Host, host)
			}
			switch {
			case rule.Login != "" && rule.Secret != "":
				return fmt.Errorf("network: %q: has a credential and a login: write two entries", rule.Host)
			case rule.Login != "":
				rule.Secret = LoginSecret(rule.Login)
			}
			if _, err := network.Compile(alone(rule)); err != nil {
				return fmt.Errorf("network: %w", err)
			}
			if rule.CA != "" && !rule.Intercepts() {
				return fmt.Errorf("network: %q: ca: is for requests that the proxy decides, and programs check the certificate of this host themselves: add methods, paths, a credential or intercept: true, or remove ca", rule.Host)
			}
			*out = append(*out, rule)
			return nil
		})
	}
}

func hostFields(rule *network.HostRule, network *Network) map[string]fields.Field {
	return map[string]fields.Field{
		"host":       fields.Text(&rule.Host),
		"ports":      portsField(&rule.Ports),
		"methods":    fields.Texts(&rule.Methods, "methods", nil),
		"paths":      fields.Texts(&rule.Paths, "paths", nil),
		"address":    addressField(&rule.Address),
		"ca":         certificatesField(&rule.CA),
		"intercept":  fields.Switch(&rule.Intercept),
		"credential": credentialField(&rule.Secret, network),
		"login":      fields.Text(&rule.Login),
	}
}

func portsField(out *[]uint16) fields.Field {
	return func(n *yaml.Node) error {
		return fields.EachItem(n, func(item *yaml.Node) error {
			s, err := fields.Scalar(item, "a port", "!!int")
			if err != nil {
				return fmt.Errorf("ports: an entry %w", err)
			}
			port, err := strconv.ParseUint(s, 10, 16)
			if err != nil || port == 0 {
				return fmt.Errorf("ports: %q is no port: write a number from 1 to %d", s, math.MaxUint16)
			}
			*out = append(*out, uint16(port))
			return nil
		})
	}
}

// addressField reads IP or IP:PORT.
func addressField(out *netip.AddrPort) fields.Field {
	return func(n *yaml.Node) error {
		var s string
		if err := fields.Text(&s)(n); err != nil {
			return err
		}
		if ip, err := netip.ParseAddr(s); err == nil {
			*out = netip.AddrPortFrom(ip.Unmap(), 0)
			return nil
		}
		at, err := netip.ParseAddrPort(s)
		if err != nil || at.Port() == 0 {
			return fmt.Errorf("%q is no address: write one like 10.0.0.5 or 127.0.0.1:8443", s)
		}
		*out = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
		return nil
	}
}

// certificatesField reads the text of certificates.
func certificatesField(out *string) fields.Field {
	return func(n *yaml.Node) error {
		if err := fields.Text(out)(n); err != nil {
			return err
		}
		if !x509.NewCertPool().AppendCertsFromPEM([]byte(*out)) {
			return errors.New("is no certificate: write the text of a PEM file, indented below ca: |")
		}
		return nil
	}
}

func credentialField(name *string, network *Network) fields.Field {
	return func(n *yaml.Node) error {
		var c Credential
		var from *credential.Source
		err := fields.Mapping(map[string]fields.Field{
			"header":   fields.Text(&c.Header),
			"format":   fields.Text(&c.Format),
			"from":     fields.Credential(&from),
			"variable": fields.Text(name),
		})(n)
		if err != nil {
			return err
		}
		if from == nil {
			return errors.New("has no from: write from: {env: NAME}, {file: PATH} or {command: [...]}")
		}
		c.From = *from
		if *name = cmp.Or(*name, c.From.Env); !fields.IsVariable(*name) {
			return fmt.Errorf("variable: %q is no name of a variable: write the variable that programs read the credential from", *name)
		}
		if err := c.check(); err != nil {
			return err
		}
		return network.addCredential(*name, c)
	}
}

func (c Credential) check() error {
	if err := header.Check(c.Header, ""); err != nil {
		return err
	}
	if c.Format != "" && (strings.Count(c.Format, "%") != 1 || strings.Count(c.Format, "%s") != 1 || !header.IsText(c.Format)) {
		return fmt.Errorf("format: %q has not one %%s and no other %%: write one like \"Bearer %%s\"", c.Format)
	}
	return nil
}

func (n *Network) addCredential(name string, c Credential) error {
	if n.Credentials == nil {
		n.Credentials = map[string]Credential{}
	}
	if other, ok := n.Credentials[name]; ok && !reflect.DeepEqual(other, c) {
		return fmt.Errorf("variable: two credentials for %s differ: make them equal, or give one another variable", name)
	}
	n.Credentials[name] = c
	return nil
}

func presetsField(out *Network, refs *[]catalog.Ref) fields.Field {
	return func(n *yaml.Node) error {
		if refs == nil {
			return errors.New("are not known here: write the hosts in allow")
		}
		return catalog.List(&out.Presets, "network.presets", catalog.PresetRef, refs)(n)
	}
}

// rateField reads an amount and a time, such as 60/minute.
func rateField[T int | int64](out *[]scope.Rate, key string, amount func(string) (T, error), example string) fields.Field {
	return func(n *yaml.Node) error {
		s, err := fields.Scalar(n, "a rate such as "+example, "!!str")
		if err != nil {
			return err
		}
		count, unit, _ := strings.Cut(s, "/")
		per := map[string]time.Duration{"second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour}[unit]
		most, err := amount(count)
		if err != nil || most <= 0 || per == 0 {
			return fmt.Errorf("%q is no rate: write one like %s, with second, minute, hour or day", s, example)
		}
		*out = []scope.Rate{{Pattern: key, N: int(most), Per: per}}
		return nil
	}
}

// parseBytes is ParseSize with a bound, so that sums stay within an int64.
func parseBytes(s string) (int64, error) {
	n, err := fields.ParseSize(s)
	if err == nil && n > 1<<50 {
		err = errors.New("is more than 1 PiB")
	}
	return n, err
}

// with returns the network with the rules of its presets. Its own rules replace those
// of a preset for the same host.
func (n Network) with(presets map[string]*Preset) Network {
	all := n
	all.Rules.Allow = slices.Clone(n.Rules.Allow)
	all.Credentials = map[string]Credential{}
	for _, name := range n.Presets {
		p := presets[name]
		if p == nil {
			continue
		}
		for _, rule := range p.Allow {
			if !slices.ContainsFunc(n.Rules.Allow, func(own network.HostRule) bool { return strings.EqualFold(own.Host, rule.Host) }) {
				all.Rules.Allow = append(all.Rules.Allow, rule)
			}
		}
		maps.Copy(all.Credentials, p.Credentials)
	}
	maps.Copy(all.Credentials, n.Credentials)
	return all
}
