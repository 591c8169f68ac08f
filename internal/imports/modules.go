package imports

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
)

// module is a module of a manifest that is a store here.
type module struct {
	reads, writes [][2]string // its tools, and the scopefs tools that do the same
	without       string      // its tools that scopefs does not have
	changes       bool        // the scopefs tools need a view that may change
	store         func(m *manifest, at, mode string) (config fields, add func())
}

// moduleOf returns the module of a type; ok is false for one that scopefs does not have.
func moduleOf(kind string) (module, bool) {
	send := [][2]string{{"send", "notify"}}
	m, ok := map[string]module{
		"sqlite": {
			reads:  [][2]string{{"query", "sql_query"}, {"list_tables", "sql_tables"}},
			writes: [][2]string{{"execute", "sql_execute"}, {"create_table", "create_table"}}, changes: true, store: (*manifest).sqlite},
		"redis": {
			reads:  [][2]string{{"get_key", "kv_get"}, {"list_keys", "kv_list"}},
			writes: [][2]string{{"set_key", "kv_set"}, {"delete_key", "kv_delete"}}, changes: true, store: (*manifest).redis},
		"influxdb": {
			reads: [][2]string{{"query", "metrics_query"}}, writes: [][2]string{{"write_points", "metrics_write"}}, changes: true,
			without: "list_measurements, get_schema, create_bucket and delete_points", store: (*manifest).influxdb},
		"nats": {
			reads: [][2]string{{"subscribe", "subscribe"}}, writes: [][2]string{{"publish", "publish"}}, changes: true, store: (*manifest).nats},
		"http_proxy": {
			reads:  [][2]string{{"get", "http_request"}},
			writes: [][2]string{{"post", "http_request"}, {"put", "http_request"}, {"delete", "http_request"}}, store: (*manifest).services},
		"slack":   {writes: send, store: webhook("slack", "SLACK_WEBHOOK_URL")},
		"discord": {writes: send, store: webhook("discord", "DISCORD_WEBHOOK_URL")},
		"ntfy":    {writes: send, store: (*manifest).ntfy},
		"smtp":    {writes: send, store: (*manifest).smtp},
		"matrix":  {writes: send, store: (*manifest).matrix},
	}[strings.TrimSuffix(kind, "_webhook")]
	return m, ok
}

// storeEntry is an entry of stores in scopefs.yaml.
type storeEntry struct {
	key, name string // name is "" for a store that is one for all agents
	node      func(id scope.ID) *yaml.Node
}

// use adds a module's tools to the definition, and its store to the entries.
func (m *manifest) use(at, name, kind, mode string, config *yaml.Node) error {
	mod, ok := moduleOf(kind)
	if !ok {
		m.lose(at, fmt.Sprintf("scopefs has no module %q", kind), "left out, with its tools")
		return nil
	}
	tools := mod.reads
	switch mode {
	case "read":
		if tools == nil { // what only sends has no tools in this mode
			m.lose(at, "its mode read has no tools", "left out")
			return nil
		}
	case "write", "":
		tools = slices.Concat(mod.reads, mod.writes)
		m.changes = m.changes || mod.changes
	default:
		return fmt.Errorf("mode is %q: want read or write", mode)
	}
	before := len(m.stores)
	keys, add := mod.store(m, at, mode)
	var own []string
	for _, t := range tools {
		own = addTo(own, t[1])
	}
	if err := keys.readFor(m.draft, at+".config.", config, own...); err != nil {
		return err
	}
	if add(); len(m.stores) == before {
		return nil
	}
	var same []string
	for _, t := range tools {
		m.tools = addTo(m.tools, t[1])
		m.files[name+"_"+t[0]] = t[1]
		same = append(same, name+"_"+t[0]+" is "+t[1])
	}
	m.lose(at, "its tools have other names and arguments", strings.Join(same, ", "))
	if mod.without != "" {
		m.lose(at, "scopefs does not have "+mod.without, "left out")
	}
	return nil
}

// add adds an entry, unless the store is there.
func (m *manifest) add(at, key, name string, node func(scope.ID) *yaml.Node) {
	if slices.ContainsFunc(m.stores, func(e storeEntry) bool { return e.key == key && e.name == name }) {
		m.lose(at, "scopefs has one such store", "left out, with its tools")
		return
	}
	m.stores = append(m.stores, storeEntry{key, name, node})
}

func fixed(n *yaml.Node) func(scope.ID) *yaml.Node { return func(scope.ID) *yaml.Node { return n } }

func (m *manifest) sqlite(at, _ string) (fields, func()) {
	var dir string
	return fields{"db_dir": textField(&dir)}, func() {
		if dir != "" && !strings.HasPrefix(dir, "/") {
			m.lose(at+".config.db_dir", "it is relative", "left out; write its absolute path as dir")
			dir = ""
		}
		none := &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
		m.add(at, "sql", "", fixed(cmp.Or(mapping("dir", textUnlessEmpty(dir)), none)))
	}
}

func (m *manifest) redis(at, _ string) (fields, func()) {
	return fields{}, func() {
		u := m.address(at, "REDIS_URL", "HOST:PORT; with tls: true for rediss, and with user and password: {env: NAME} if it has them")
		parsed, err := url.Parse(u)
		if err != nil || parsed.Hostname() == "" { // it is to be filled in
			m.add(at, "kv", "", fixed(mapping("redis", text(u))))
			return
		}
		port := cmp.Or(parsed.Port(), "6379")
		var tls *yaml.Node
		if parsed.Scheme == "rediss" {
			tls = literal("true")
		}
		m.add(at, "kv", "", fixed(mapping("redis", text(parsed.Hostname()+":"+port), "tls", tls)))
	}
}

func (m *manifest) influxdb(at, _ string) (fields, func()) {
	var org string
	var buckets []string
	return fields{"org": textField(&org), "buckets": listField(&buckets)}, func() {
		base, token := m.address(at, "INFLUXDB_URL", "the address"), m.credential("INFLUXDB_TOKEN")
		m.add(at, "metrics", "", func(id scope.ID) *yaml.Node {
			access := func(bucket string) (string, *yaml.Node) { return bucket, list([]string{string(id)}) }
			return mapping("url", text(base), "version", literal("2"), "org", textUnlessEmpty(org), "credential", token,
				"buckets", mappingOf(buckets, access))
		})
	}
}

func (m *manifest) nats(at, _ string) (fields, func()) {
	var address string
	return fields{"url": textField(&address)}, func() {
		if address == "" {
			address = m.address(at, "NATS_URL", "the address, tls://HOST:PORT; add user, and password: {env: NAME}, if it has them")
		}
		m.lose(at, "messages are kept by JetStream of NATS 2.14 or newer",
			"stores.messages; without url the daemon has a server of its own")
		m.add(at, "messages", "", fixed(mapping("url", text(address))))
	}
}

func (m *manifest) services(at, mode string) (fields, func()) {
	methods := []string{"GET"}
	if mode != "read" {
		methods = append(methods, "POST", "PUT", "DELETE")
	}
	return fields{"allowed_services": func(n *yaml.Node) error {
		if n.Kind != yaml.SequenceNode {
			return fmt.Errorf("line %d: want a list", n.Line)
		}
		for _, item := range n.Content {
			var name, base, key string
			f := fields{"name": textField(&name), "base_url": textField(&base), "credential_key": textField(&key)}
			if err := f.read(m.draft, at+".config.allowed_services.", item); err != nil {
				return err
			}
			if u, err := url.Parse(base); !catalog.IsServerName(name) || err != nil || u.Hostname() == "" || u.User != nil {
				m.lose(at+".config.allowed_services: "+name, "its name would be a pattern, or base_url is no address without a user", "left out")
				continue
			}
			var secret, prefix *yaml.Node
			if key != "" {
				secret, prefix = m.credential(key), text("Bearer ")
			}
			m.add(at, "services", name, func(id scope.ID) *yaml.Node {
				return mapping("url", text(base), "agents", list([]string{string(id)}), "methods", list(methods),
					"credential", secret, "prefix", prefix)
			})
		}
		return nil
	}}, func() {}
}

// webhook returns the store of a module whose credential is an address.
func webhook(kind, key string) func(m *manifest, at, mode string) (fields, func()) {
	return func(m *manifest, at, _ string) (fields, func()) {
		return fields{}, func() {
			secret := m.credential(key)
			m.channel(at, "", func(scope.ID) *yaml.Node { return mapping("kind", text(kind), "credential", secret) })
		}
	}
}

// channel adds a channel of notify for the agent alone, with a name that no other agent's has.
func (m *manifest) channel(at, more string, node func(scope.ID) *yaml.Node) {
	name := strings.TrimPrefix(at, "modules.")
	if !catalog.IsServerName(name) {
		m.lose(at, "its name would be a pattern", "left out, with its tools")
		return
	}
	m.add(at, "notify", name+more, func(id scope.ID) *yaml.Node {
		n := node(id)
		put(n, "agents", list([]string{string(id)}))
		return n
	})
}

func (m *manifest) ntfy(at, _ string) (fields, func()) {
	topic := "agents-{agent_id}"
	f := fields{"topic": textField(&topic)}
	m.loseKeys(f, at+".config.", "notify has no priority", "max_priority")
	return f, func() {
		if strings.ContainsAny(strings.ReplaceAll(topic, "{agent_id}", ""), "{}/?#") {
			m.lose(at+".config.topic", "it is no name of a topic", "left out, with its tools")
			return
		}
		base, token := m.address(at, "NTFY_URL", "the address of the server"), m.credential("NTFY_TOKEN")
		m.channel(at, "", func(id scope.ID) *yaml.Node {
			address := strings.TrimSuffix(base, "/") + "/" + strings.ReplaceAll(topic, "{agent_id}", string(id))
			return mapping("kind", text("ntfy"), "url", text(address), "credential", token)
		})
		m.lose(at, "NTFY_TOKEN may be absent there", "credential: remove it if the topic needs none")
	}
}

func (m *manifest) matrix(at, _ string) (fields, func()) {
	var rooms []string
	return fields{"allowed_rooms": listField(&rooms)}, func() {
		base, token := m.address(at, "MATRIX_HOMESERVER", "the address of the server"), m.credential("MATRIX_ACCESS_TOKEN")
		for i, room := range rooms {
			m.channel(at, numbered(i), func(scope.ID) *yaml.Node {
				return mapping("kind", text("matrix"), "url", text(base), "room", text(room), "credential", token)
			})
		}
	}
}

// smtp makes a channel for each recipient: an agent chooses among them.
func (m *manifest) smtp(at, _ string) (fields, func()) {
	var from string
	var to []string
	return fields{"from_address": textField(&from), "allowed_recipients": listField(&to)}, func() {
		for _, key := range []string{"SMTP_HOST", "SMTP_PORT", "SMTP_USER"} {
			m.lose(at, key+" is not in the manifest", "write its value in the place of "+key+" in scopefs.yaml")
		}
		secret := m.credential("SMTP_PASSWORD")
		for i, one := range to {
			m.channel(at, numbered(i), func(scope.ID) *yaml.Node {
				return mapping("kind", text("email"), "url", text("smtp://SMTP_HOST:SMTP_PORT"), "from", text(from),
					"to", list([]string{one}), "user", text("SMTP_USER"), "credential", secret)
			})
		}
	}
}

// numbered returns what the name of the next channel of a module has more than the first's.
func numbered(i int) string {
	if i == 0 {
		return ""
	}
	return fmt.Sprintf("-%d", i+1)
}

// secrets says where the credentials of a manifest are.
type secrets struct {
	source, path string // source is env, file or vault
	used         bool
}

// readCredentials reads the key credentials, without any secret.
func (m *manifest) readCredentials(n *yaml.Node) error {
	m.secrets.source = "env"
	if n == nil || isNull(n) {
		return nil
	}
	f := fields{"source": textField(&m.secrets.source), "path": textField(&m.secrets.path), "vault": func(n *yaml.Node) error {
		if n.Kind == yaml.MappingNode && frontmatter.Value(n, "path") != nil {
			return textField(&m.secrets.path)(frontmatter.Value(n, "path"))
		}
		return nil
	}}
	f["strict_permissions"] = func(n *yaml.Node) error {
		if strict, err := boolOf(n); err != nil || !strict {
			m.lose("credentials.strict_permissions", "a file of secrets is private here", "chmod 600 it")
		}
		return nil
	}
	if err := f.read(m.draft, "credentials.", n); err != nil {
		return err
	}
	if s := m.secrets; !slices.Contains([]string{"env", "file", "vault"}, s.source) || s.source != "env" && s.path == "" {
		return errors.New("credentials: want source: env, file with path, or vault with vault.path")
	}
	return nil
}

// credential returns where scopefs reads the secret that a manifest calls key.
func (m *manifest) credential(key string) *yaml.Node {
	m.secrets.used = true
	switch m.secrets.source {
	case "file":
		return mapping("file", text(m.secrets.path), "key", text(key))
	case "vault":
		m.lose("credentials.vault", "scopefs does not log in to Vault",
			"the command vault reads each secret; log in the daemon's user, and check the path")
		path := strings.TrimPrefix(strings.TrimPrefix(m.secrets.path, "secret/"), "data/")
		return mapping("command", list([]string{"/usr/bin/vault", "kv", "get", "-mount=secret", "-field=" + key,
			strings.ReplaceAll(path, "{agent_type}", m.name)}))
	}
	return mapping("env", text(key))
}

// address returns an address that a manifest has among its credentials: the variable's
// value if it is there and has neither a user nor a path, which may be secrets, or else its
// name, which the operator replaces.
func (m *manifest) address(at, key, want string) string {
	if m.secrets.source == "env" && m.env != nil {
		value, ok := m.env(key)
		if u, err := url.Parse(value); ok && err == nil && u.Hostname() != "" && u.User == nil && u.RawQuery == "" &&
			u.Fragment == "" && slices.Contains([]string{"", "/", "/0"}, u.Path) {
			return value
		}
	}
	m.lose(at, key+" is not in the manifest", "write in the place of "+key+" in scopefs.yaml "+want)
	return key
}

// storesText returns what scopefs.yaml needs for the manifest's modules; nil for nothing.
func (d *draft) storesText() ([]byte, error) {
	top := &yaml.Node{Kind: yaml.MappingNode}
	for _, e := range d.stores {
		if e.name == "" {
			put(top, e.key, e.node(d.id))
			continue
		}
		if frontmatter.Value(top, e.key) == nil {
			put(top, e.key, &yaml.Node{Kind: yaml.MappingNode})
		}
		name := e.name
		if e.key == "notify" {
			name += "-" + string(d.id)
		}
		put(frontmatter.Value(top, e.key), name, e.node(d.id))
	}
	if len(top.Content) == 0 {
		return nil, nil
	}
	return encode(mapping("stores", top))
}
