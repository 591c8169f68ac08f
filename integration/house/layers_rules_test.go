// Package house holds the rules of the house: what a program must not link, who may call the system, what is at the top.
package house

const module = "github.com/scopefs/scopefs/"

// moduleDirs are the directories of our modules. The first is the library's and the program's.
var moduleDirs = []string{".", "cmd/scopefs-export", "cmd/scopefs-stores", "cmd/scopefs-console", "cmd/scopefs-csi", "integration"}

// modules are the patterns of all our packages.
var modules = []string{"./...", "./cmd/scopefs-export/...", "./cmd/scopefs-stores/...", "./cmd/scopefs-console/...", "./cmd/scopefs-csi/...", "./integration/..."}

// owners says which packages may import a dependency, so that it can be replaced
// in one place. A key is an import path and stands for what is below it. Tests and
// the tools of tests may import whatever is listed; without packages, only they
// may. docs/dependencies.md has each module, with the reason that it is there.
var owners = map[string]struct {
	packages []string
	why      string
}{
	"github.com/spf13/cobra":                     {[]string{"internal/cli", "internal/command", "internal/consolecmd", "internal/exit", "internal/fleetcmd", "internal/front", "internal/logcmd", "internal/pages", "internal/trustcmd"}, "only the command line parses one"},
	"github.com/hanwen/go-fuse/v2/fuse":          {[]string{"fs", "fs/callfs", "fs/fusedev", "fs/fusedev/passthrough", "fs/listing", "fs/quota"}, "two file systems, one protocol; go-fuse/v2/fs is not listed, for its node tree resolves by joining paths"},
	"github.com/spf13/cobra/doc":                 {[]string{"internal/pages"}, "each start of the program would pay for it"},
	"github.com/landlock-lsm":                    {[]string{"internal/view/serve", "internal/confine", "internal/privileges"}, "those who confine themselves"},
	"github.com/alecthomas/chroma":               {[]string{"cmd/scopefs-console/internal/colours"}, "text of agents is lexed within one bound"},
	"github.com/bmatcuk/doublestar":              {[]string{"scope", "scope/network", "tools/file/message", "tools/file/tree", "tools/file/profile", "tools/http", "internal/report"}, "one meaning of a pattern: the operator's and the agent's"},
	"github.com/pelletier/go-toml":               {[]string{"internal/imports"}, "agent files of other programs"},
	"go.yaml.in/yaml":                            {[]string{"cmd/scopefs-csi/internal/rules", "internal/config", "internal/fields", "internal/frontmatter", "internal/programs", "internal/selftest", "scope/agents", "scope/catalog", "scope/hosts", "scope/protect", "internal/imports"}, "what the operator writes"},
	"github.com/coreos/go-systemd":               {[]string{"internal/cli"}, "the daemon does not know which service manager there is"},
	"github.com/fsnotify/fsnotify":               {[]string{"internal/daemon"}, "only the daemon watches"},
	"github.com/stretchr/testify":                {nil, "for tests"},
	"github.com/modelcontextprotocol":            {[]string{"tools/mcp", "tools/upstream"}, "the protocol's two ends"},
	"github.com/google/jsonschema-go":            {[]string{"tools", "tools/ask", "tools/mcp", "tools/upstream"}, "what arguments are"},
	"modernc.org/sqlite":                         {[]string{"cmd/scopefs-stores/internal/engine", "cmd/scopefs-stores/internal/kv", "cmd/scopefs-stores/internal/sqliteconn"}, "statements of agents, and a store in a file, run in confined processes alone"},
	"modernc.org/libc":                           {nil, "for tests"},
	"github.com/minio/minio-go/v7":               {[]string{"cmd/scopefs-stores/internal/objects"}, "a store on an S3 server"},
	"github.com/tidwall/gjson":                   {[]string{"internal/clients"}, "settings of others keep their form"},
	"github.com/tidwall/sjson":                   {[]string{"internal/clients"}, "settings of others keep their form"},
	"github.com/wneessen/go-mail":                {[]string{"cmd/scopefs-stores/internal/mail"}, "e-mail is one kind of channel"},
	"github.com/go-webauthn/webauthn":            {[]string{"cmd/scopefs-console/internal/keys"}, "a passkey is one kind of proof"},
	"rsc.io/qr":                                  {[]string{"cmd/scopefs-console"}, "the link that pairs a device"},
	"github.com/redis/go-redis/v9":               {[]string{"cmd/scopefs-stores/internal/kv"}, "a store on a server"},
	"github.com/nats-io/nats.go":                 {[]string{"cmd/scopefs-stores/internal/messages", "cmd/scopefs-export/internal/fleet", "cmd/scopefs-export/internal/receivers"}, "a store on a server, a receiver of the log, a fleet"},
	"github.com/nats-io/nats-server":             {[]string{"cmd/scopefs-stores/internal/messages"}, "a store on a server in the process of the drivers"},
	"github.com/klauspost/compress":              {[]string{"audit", "audit/segment"}, "complete segments of the log"},
	"golang.org/x/mod/sumdb/note":                {[]string{"audit", "audit/proof", "audit/tree", "internal/fleet", "internal/fleet/library", "internal/fleet/order", "internal/witness"}, "signed heads of the log, and orders of operators"},
	"golang.org/x/mod/sumdb/tlog":                {[]string{"audit/proof", "audit/tree", "internal/witness"}, "the hash tree of the log"},
	"golang.org/x/time/rate":                     {[]string{"tools/limit"}, "what an agent writes to the log"},
	"github.com/moby/sys/mountinfo":              {[]string{"cmd/scopefs-csi/internal/volumes", "internal/account", "internal/daemon", "internal/holder/serve", "internal/mount", "internal/session", "tools/sandbox"}, "which views and control groups are mounted"},
	"github.com/rogpeppe/go-internal/diff":       {[]string{"cmd/scopefs-console/internal/pages", "fs/branch", "fs/history/query", "tools/file/message", "internal/report", "internal/trust"}, "the diffs of edit_file, of scopefs changes and of approvals, and merges"},
	"github.com/rogpeppe/go-internal/testscript": {nil, "for tests"},
	"github.com/hanwen/go-fuse/v2/posixtest":     {nil, "for tests"},
	"golang.org/x/sys/unix":                      {[]string{"**"}, "constants and types; TestSystemCalls holds which packages make system calls"},
	"golang.org/x/net/bpf":                       {nil, "for tests"},
	"golang.org/x/net/http2":                     {nil, "for tests"},
	"golang.org/x/net/idna":                      {[]string{"scope/network"}, "one canonical form of a host's name"},
	"golang.org/x/crypto/ssh":                    {[]string{"tools/sshkeys", "internal/session"}, "what is signed with a user's SSH keys is decided in one place"},
	"golang.org/x/term":                          {[]string{"internal/terminal", "internal/top"}, "only the command line has a terminal"},
	"github.com/chromedp":                        {nil, "for tests"},
	"github.com/lib/pq":                          {[]string{"cmd/scopefs-stores/internal/postgres"}, "a store on a server"},
	"github.com/creack/pty":                      {nil, "for tests"},
	"github.com/valllabh/ocsf-schema-golang":     {nil, "for tests"},
	"go.opentelemetry.io/collector/pdata":        {[]string{"cmd/scopefs-export/internal/export", "cmd/scopefs-export/internal/receivers"}, "the log for OpenTelemetry"},
	"go.opentelemetry.io/otel":                   {[]string{"cmd/scopefs-export/internal/traces"}, "spans for OpenTelemetry"},
	"go.opentelemetry.io/proto/otlp":             {nil, "for tests"},
	"github.com/prometheus/client_model":         {nil, "for tests"},
	"github.com/prometheus/common":               {nil, "for tests"},
	"google.golang.org/protobuf":                 {[]string{"cmd/scopefs-csi/internal/node"}, "messages of CSI"},
	"google.golang.org/grpc":                     {[]string{"cmd/scopefs-csi", "cmd/scopefs-csi/internal/node"}, "CSI is gRPC; the main program has none"},
	"github.com/container-storage-interface":     {[]string{"cmd/scopefs-csi/internal/node"}, "CSI itself"},
	"github.com/kubernetes-csi/csi-test":         {nil, "for tests"},
	"github.com/onsi":                            {nil, "for tests"},
	"k8s.io":                                     {nil, "for tests"},
	"k8s.io/kubelet":                             {[]string{"cmd/scopefs-csi/internal/node"}, "the registration of plugins"},
	"sigs.k8s.io":                                {nil, "for tests"},
}

// callers may make system calls: for files (convention 8; tools/file runs inside a
// sandbox), and for mounts, namespaces, sockets and confinement.
var callers = []string{"scope/beneath", "scope/beneath/mounts", "internal/durable", "internal/companion", "internal/claim", "internal/child", "internal/pathwatch", "internal/descriptors", "internal/packets", "internal/seccomp", "internal/folder", "fs/quota", "audit", "audit/segment", "fs/fusedev", "fs/fusemount", "tools/sandbox", "tools/sandbox/pid1", "tools/sandbox/ports", "tools/sandbox/echoes", "internal/account", "internal/anchor", "internal/oneshot", "internal/session", "internal/api", "internal/daemon", "internal/definitions", "internal/doctor", "internal/mount", "internal/view", "internal/view/serve", "internal/cli", "internal/embedded", "internal/importer", "internal/selftest", "internal/terminal", "internal/state", "internal/holder", "internal/holder/serve", "internal/holder/wire", "internal/usage", "internal/boottime", "internal/pinned", "internal/privileges", "internal/slack", "internal/thread", "internal/sigaction", "internal/credential",
	"internal/login", "tools/egress", "tools/sql", "tools/bash/tape", "internal/outlive", "internal/driver", "internal/heart", "internal/liveness", "internal/pidfd", "internal/contextfs", "internal/contextfs/serve", "internal/devices", "internal/loopback", "internal/agentproc", "tools/egress/tunnel", "tools/file/tree", "cmd/scopefs-log", "internal/agentproc/serve", "internal/paths", "internal/client",
	"internal/confine", "cmd/scopefs-export/internal/streams", "cmd/scopefs-stores/internal/drivers", "cmd/scopefs-stores/internal/engine", "cmd/scopefs-stores/internal/messages"} // flock(2), bind(2), socketpair(2), gettid(2), kill(2), recv(2)

// pure are functions of x/sys/unix and syscall that call nobody.
var pure = []string{"ErrnoName", "Mkdev", "SignalName", "ByteSliceToString"}

// exits are the files outside tests that may end the process, with how often.
var exits = map[string]int{
	"integration/demo/pictures.go":                  1,
	"cmd/scopefs/main.go":                           3, // it prints, asks or executes
	"cmd/scopefs-view/main.go":                      1,
	"cmd/scopefs-context/main.go":                   1,
	"cmd/scopefs-log/main.go":                       1,
	"cmd/scopefs-holder/main.go":                    1,
	"cmd/scopefs-ssh/main.go":                       1,
	"cmd/scopefs-agent/main.go":                     1,
	"cmd/scopefs-yaml/main.go":                      1,
	"cmd/scopefs-init/main.go":                      1,
	"cmd/scopefs-files/main.go":                     1,
	"internal/child/child.go":                       1, // a program that plays roles ends with the role
	"cmd/scopefsd/main.go":                          1,
	"cmd/scopefs-stores/main.go":                    3, // likewise
	"cmd/scopefs-export/main.go":                    2, // likewise
	"cmd/scopefs-console/main.go":                   1,
	"cmd/scopefs-csi/main.go":                       1,
	"internal/pages/main.go":                        2, // a program of make
	"cmd/scopefs-stores/internal/engine/process.go": 1, // a database without a daemon ends, whatever it executes
	"docs/examples/check-proof/main.go":             1,
	"internal/contextfs/serve/main.go":              2, // without a daemon it does not know whose call a thread is
	"internal/view/serve/main.go":                   1, // a view without a daemon cannot record: it ends
}

// textReaders may look into an error's text, with the reason.
var textReaders = map[string]string{
	"internal/frontmatter/frontmatter.go": "go.yaml.in/yaml has no type for its errors: their line and their prefix are in the text",
	"tools/validate.go":                   "jsonschema-go has no type for its errors: the way to the property is in the text",
	"tools/upstream/conn.go":              "the SDK's error for a request that was not sent has no exported value, and servers use its code",
}

// topLevel is what may be at the top, beside files whose name starts with a dot.
var topLevel = []string{
	"go.mod", "go.sum", "go.work", "go.work.sum", "cmd", "fs", "scope", "audit", "tools", "internal", "integration",
	"Makefile", "README.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "docs", "packaging",
	"bin", "demo", // built, and never committed
}
