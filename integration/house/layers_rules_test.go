// Package house holds the rules of the house: which package may import which, who may call
// the system, what is at the top.
package house

const module = "github.com/scopefs/scopefs/"

// floors says what of ours each package may import. A package that is not here
// has no floor yet: give it one.
var floors = map[string]struct {
	imports []string
	why     string
}{
	"scope":              {nil, "what an agent may do must be decidable without anything else"},
	"scope/beneath":      {nil, "a richer os.Root is useful alone"},
	"scope/agents":       {[]string{"scope", "scope/beneath", "scope/context", "internal/frontmatter", "internal/printable", "internal/credential"}, "a definition is text: nothing runs for it to be read"},
	"audit":              {[]string{"internal/peer"}, "the log must be provable without what writes to it"},
	"fs/fusedev":         {nil, "a connection to the kernel carries any file system"},
	"fs":                 {[]string{"scope", "audit", "scope/beneath", "internal/thread", "fs/fusedev"}, "the view resolves and decides by scope, and records by audit"},
	"fs/callfs":          {[]string{"fs/fusedev"}, "which call a process works for is told to it"},
	"tools/limit":        {[]string{"scope"}, "a bound knows neither what it bounds nor how much"},
	"scope/context":      {nil, "what a call may see of a context must be decidable without anything else"},
	"tools":              {[]string{"scope", "audit", "tools/limit", "scope/context"}, "another module can have the one door with rules of its own, and without definition files"},
	"tools/sandbox":      {[]string{"scope", "scope/beneath", "internal/thread", "tools/sandbox/pid1"}, "a place where tools run knows whose it is, and not what runs"},
	"tools/sandbox/pid1": {[]string{"internal/thread"}, "process 1 runs inside the sandbox and knows nothing of the daemon; the host's side imports its messages"},
	"tools/skill":        {[]string{"scope", "tools", "internal/frontmatter"}, "a skill is a text with front matter"},
	"tools/mcp":          {[]string{"scope", "tools", "scope/context", "tools/limit"}, "the MCP face of a set"},
	"tools/sql":          {[]string{"scope", "tools", "tools/sandbox", "tools/sql/engine", "internal/peer"}, "it starts engines, and speaks to them"},
	"tools/sql/engine":   {[]string{"internal/peer"}, "a confined process that knows no agent: hostile statements run in it"},
	"tools/notify":       {[]string{"scope", "tools", "tools/limit", "tools/egress", "internal/credential"}, "it delivers by the rules of connections, and bounds how often"},
	"tools/*":            {[]string{"scope", "audit", "tools", "scope/context", "tools/sandbox", "internal/credential", "internal/linecheck", "tools/egress"}, "a tool does not know the other tools, nor who calls it, nor where the rules come from"},
	"tools/file":         {[]string{"scope", "audit", "tools", "tools/file/worker", "tools/sandbox", "scope/beneath", "internal/peer"}, "operations on files, which its worker does inside"},
	"internal/peer":      {nil, "frames and ids know no message"},
	"internal/linecheck": {nil, "lines know no protocol"},
	"tools/file/worker":  {[]string{"tools", "tools/sandbox", "internal/peer"}, "a transport knows no operation"},
	"tools/file/profile": {[]string{"tools", "tools/file", "tools/sandbox"}, "other programs' names for the tools of tools/file"},
	"internal/config":    {[]string{"scope", "scope/agents"}, "settings are values"},
	"internal/heart":     {nil, "whether a process answers does not depend on what it does"},
	"internal/contextfs": {[]string{"fs/callfs", "fs/fusedev", "internal/guard", "internal/heart", "internal/peer", "internal/view", "tools/limit", "tools/sandbox"}, "which call a process works for is told to both ends"},
	"internal/view":      {[]string{"scope", "scope/agents", "audit", "fs", "fs/fusedev", "scope/beneath", "internal/account", "internal/api", "internal/guard", "internal/heart", "internal/mount", "internal/peer", "tools/sandbox"}, "both ends of a view's protocol: they know no call and no client"},
	"internal/bridge":    {nil, "it passes messages on, and must not decide"},
	"internal/state":     {[]string{"scope", "tools", "tools/limit"}, "what is kept is values of the doors"},
	"internal/daemon":    {[]string{"scope", "audit", "tools", "tools/limit", "tools/sandbox", "tools/mcp", "internal/account", "internal/agent", "internal/session", "internal/view", "internal/config", "internal/api", "internal/guard", "internal/logger", "internal/mount", "internal/state", "scope/agents", "fs/fusedev", "internal/stores"}, "it serves no view itself: a process that does must not touch one"},
	"internal/cli":       {[]string{"internal/printable", "internal/thread", "scope", "scope/context", "audit", "tools", "tools/*", "internal/account", "internal/session", "internal/bridge", "internal/changes", "internal/clients", "internal/config", "internal/api", "internal/daemon", "internal/doctor", "internal/extensions", "internal/imports", "internal/mount", "internal/programs", "internal/state", "scope/beneath", "scope/agents", "internal/stores"}, "a thin face: what it can, others can without it"},
	"internal/pages":     {[]string{"internal/cli"}, "a program of make that writes what the command line says of itself"},
	"cmd/scopefs":        {[]string{"tools/sandbox/pid1", "tools/file", "tools/file/worker", "tools/sql/engine", "internal/view", "internal/contextfs", "internal/guard", "internal/logger", "internal/cli"}, "main only chooses the role"},
	"integration/*":      {[]string{"**"}, "tests of the whole, and their tools"},

	"internal/extensions": {nil, "it copies files and does not know what they say"},

	"tools/egress":         {[]string{"scope", "audit", "tools/limit", "internal/credential"}, "whoever connects for an agent does it here; where the rules come from it does not know"},
	"internal/stores":      {[]string{"internal/api", "scope", "scope/agents", "tools", "tools/*", "internal/credential"}, "a store knows its settings, and no agent"},
	"internal/need":        {nil, "any test may need root, a program or time"},
	"internal/agenttest":   {[]string{"audit", "scope", "scope/agents", "tools"}, "any tool's test may call the tool as an agent does"},
	"internal/opentest":    {nil, "any test may count what is opened"},
	"internal/servertest":  {[]string{"internal/need"}, "any test may need a server"},
	"internal/workertest":  {[]string{"tools/file/worker"}, "the tests of tools/file and of its profiles need no sandbox"},
	"internal/credential":  {[]string{"internal/frontmatter"}, "who holds a secret need not know what it is for; a file of several is YAML"},
	"internal/frontmatter": {nil, "definitions, skills and imports have one reader"},
	"internal/printable":   {nil, "anybody writes a line"},
	"internal/thread":      {nil, "anybody starts a thread"},
	"internal/changes":     {[]string{"audit", "scope", "scope/beneath"}, "what an agent left is only looked at"},
	"internal/api":         {[]string{"scope", "tools", "tools/sandbox", "internal/config"}, "a client of the daemon needs nothing that runs in it"},
	"internal/account":     {[]string{"internal/config", "internal/mount", "scope", "scope/agents", "scope/beneath", "tools/sandbox"}, "who and where an agent is does not depend on what it does"},
	"internal/session":     {[]string{"scope", "scope/context", "audit", "tools", "tools/*", "tools/file/worker", "tools/file/profile", "internal/account", "internal/config", "internal/api", "internal/mount", "internal/state", "internal/stores", "internal/view", "scope/beneath", "scope/agents", "internal/contextfs"}, "what happens on a view does not know when it is mounted"},
	"internal/agent":       {[]string{"scope", "scope/agents", "audit", "internal/account", "internal/api", "internal/session", "internal/view"}, "one agent does not know the daemon that has it"},
	"internal/mount":       {[]string{"scope", "fs/fusedev"}, "which views are mounted does not depend on who serves them"},
	"internal/guard":       {[]string{"fs/fusedev"}, "it outlives a daemon that is dead, and needs nothing of it"},
	"internal/logger":      {[]string{"audit"}, "only it waits for the log's disk"},
	"internal/doctor":      {[]string{"audit", "internal/mount", "internal/view", "fs/fusedev", "scope/beneath", "tools/sandbox"}, "it tries what those need, and needs no base"},
	"internal/clients":     {nil, "the settings of other programs are text"},
	"internal/imports":     {[]string{"internal/frontmatter", "internal/printable", "scope", "scope/agents"}, "bytes in, bytes out: what others wrote is only text"},

	"internal/programs": {nil, "what is installed on a host does not depend on who runs it"},
}

// owners says which packages may import a dependency, so that it can be replaced
// in one place. A key is an import path and stands for what is below it. Tests and
// the tools of tests may import whatever is listed; without packages, only they
// may. docs/dependencies.md has each module, with the reason that it is there.
var owners = map[string]struct {
	packages []string
	why      string
}{
	"github.com/hanwen/go-fuse/v2/fuse":          {[]string{"fs", "fs/callfs", "fs/fusedev"}, "two file systems, one protocol; go-fuse/v2/fs is not listed, for its node tree resolves by joining paths"},
	"github.com/spf13/cobra":                     {[]string{"internal/cli", "internal/pages"}, "only the command line parses one"},
	"github.com/spf13/cobra/doc":                 {[]string{"internal/pages"}, "each start of the program would pay for it"},
	"github.com/landlock-lsm":                    {[]string{"internal/view", "tools/sql/engine"}, "those who confine themselves"},
	"github.com/elastic/go-seccomp-bpf":          {[]string{"internal/view", "tools/sandbox", "tools/sql/engine"}, "those who confine"},
	"github.com/bmatcuk/doublestar":              {[]string{"scope", "tools/file", "tools/file/profile", "tools/http"}, "one meaning of a pattern: the operator's and the agent's"},
	"github.com/pelletier/go-toml":               {[]string{"internal/imports"}, "agent files of other programs"},
	"go.yaml.in/yaml":                            {[]string{"internal/frontmatter", "scope/agents", "internal/imports"}, "what the operator writes"},
	"github.com/coreos/go-systemd":               {[]string{"internal/cli"}, "the daemon does not know which service manager there is"},
	"github.com/fsnotify/fsnotify":               {[]string{"internal/daemon"}, "only the daemon watches"},
	"github.com/stretchr/testify":                {nil, "for tests"},
	"github.com/modelcontextprotocol":            {[]string{"tools/mcp", "tools/upstream"}, "the protocol's two ends"},
	"github.com/google/jsonschema-go":            {[]string{"tools", "tools/ask", "tools/mcp", "tools/upstream"}, "what arguments are"},
	"modernc.org/sqlite":                         {[]string{"tools/sql/engine"}, "statements of agents run in a confined process alone"},
	"modernc.org/libc":                           {nil, "for tests"},
	"zombiezen.com/go/sqlite":                    {[]string{"tools/kv"}, "a store in a file"},
	"github.com/minio/minio-go/v7":               {[]string{"tools/objects"}, "a store on an S3 server"},
	"github.com/tidwall/gjson":                   {[]string{"internal/clients"}, "settings of others keep their form"},
	"github.com/tidwall/sjson":                   {[]string{"internal/clients"}, "settings of others keep their form"},
	"github.com/wneessen/go-mail":                {[]string{"tools/notify"}, "e-mail is one kind of channel"},
	"github.com/redis/go-redis/v9":               {[]string{"tools/kv"}, "a store on a server"},
	"github.com/nats-io/nats.go":                 {[]string{"tools/messages"}, "a store on a server"},
	"github.com/nats-io/nats-server":             {[]string{"tools/messages"}, "a store on a server in this process"},
	"github.com/klauspost/compress":              {[]string{"audit"}, "complete segments of the log"},
	"golang.org/x/time/rate":                     {[]string{"tools/limit"}, "what an agent writes to the log"},
	"github.com/moby/sys/mountinfo":              {[]string{"internal/account", "internal/daemon", "internal/mount", "tools/sandbox"}, "which views and control groups are mounted"},
	"github.com/rogpeppe/go-internal/diff":       {[]string{"tools/file", "internal/cli"}, "the diffs of edit_file and of scopefs changes"},
	"github.com/rogpeppe/go-internal/testscript": {nil, "for tests"},
	"github.com/hanwen/go-fuse/v2/posixtest":     {nil, "for tests"},
	"golang.org/x/sys/unix":                      {[]string{"**"}, "constants and types; TestSystemCalls holds which packages make system calls"},
	"golang.org/x/net/bpf":                       {[]string{"tools/sandbox"}, "assembles the filters of a sandbox's sockets"},
	"golang.org/x/net/http2":                     {nil, "for tests"},
	"golang.org/x/net/idna":                      {[]string{"scope"}, "one canonical form of a host's name"},
	"golang.org/x/term":                          {[]string{"internal/cli"}, "only the command line has a terminal"},
	"charm.land/bubbletea/v2":                    {[]string{"internal/cli"}, "only the command line draws on a terminal"},
	"github.com/charmbracelet/x/ansi":            {[]string{"internal/cli"}, "the width of what it draws"},
	"github.com/lib/pq":                          {nil, "for tests"},
	"github.com/creack/pty":                      {nil, "for tests"},
}

// callers may make system calls: for files (convention 8; tools/file runs inside a
// sandbox), and for mounts, namespaces, sockets and confinement.
var callers = []string{"scope/beneath", "scope/agents", "audit", "fs/fusedev", "tools/sandbox", "tools/sandbox/pid1", "tools/file", "tools/file/worker", "internal/account", "internal/session", "internal/api", "internal/daemon", "internal/doctor", "internal/mount", "internal/view", "internal/cli",
	"internal/state", "internal/guard", "internal/heart", "internal/contextfs", "internal/logger", "internal/thread", "internal/credential", "tools/egress", "tools/sql", "tools/sql/engine", "tools/messages"} // flock(2), socketpair(2), gettid(2), kill(2), recv(2)

// pure are functions of x/sys/unix and syscall that call nobody.
var pure = []string{"ErrnoName", "Mkdev", "SignalName", "ByteSliceToString"}

// exits are the files outside tests that may end the process, with how often.
var exits = map[string]int{
	"cmd/scopefs/main.go":         8, // one for each role
	"internal/pages/main.go":      2, // a program of make
	"tools/sql/engine/process.go": 1, // a database without a daemon ends, whatever it executes
	"internal/contextfs/main.go":  1, // without a daemon it does not know whose call a thread is
	"internal/view/main.go":       1, // a view without a daemon cannot record: it ends
}

// textReaders may look into an error's text, with the reason.
var textReaders = map[string]string{
	"internal/frontmatter/frontmatter.go": "go.yaml.in/yaml has no type for its errors: their line and their prefix are in the text",
	"tools/validate.go":                   "jsonschema-go has no type for its errors: the way to the property is in the text",
	"tools/upstream/conn.go":              "the SDK's error for a request that was not sent has no exported value, and servers use its code",
}

// topLevel is what may be at the top, beside files whose name starts with a dot.
var topLevel = []string{
	"go.mod", "go.sum", "cmd", "fs", "scope", "audit", "tools", "internal", "integration",
	"Makefile", "README.md", "CONTRIBUTING.md", "LICENSE", "docs", "packaging",
	"bin", "demo", // built, and never committed
}

// A class is a package that stands for all packages beside it.
var classes = []string{"tools/*", "integration/*"}
