// Package wire declares what the daemon and the drivers of its stores say to each other: the settings
// that the daemon begins with, and the methods of each driver.
package wire

import (
	"time"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/tools/kv"
	"github.com/scopefs/scopefs/tools/messages"
	"github.com/scopefs/scopefs/tools/notify"
	"github.com/scopefs/scopefs/tools/objects"
	"github.com/scopefs/scopefs/tools/sql/engine"
)

// The drivers by name. A driver gets the credential and the connections of its name.
const (
	KV       = "kv"
	Messages = "messages"
	Objects  = "objects"
	SQL      = "sql"
	Mail     = "mail." // and the name of the channel
)

// The files of embedded stores, below [Settings.State].
const (
	KVFile      = "kv.db"
	KVJournal   = KVFile + "-journal" // SQLite's name for it
	MessagesDir = "messages"
)

// Settings are what the program begins with. They are those of scopefs.yaml, and nil for a store that is
// not configured.
type Settings struct {
	State    string // the directory with the files of embedded stores; they exist
	KV       *config.KVStore
	Messages *config.MessagesStore
	Objects  *config.ObjectStore
	SQL      *config.SQLStore // nil, too, for SQLite
}

// Embedded returns which stores have files.
func (s Settings) Embedded() (kv, messages bool) {
	return s.KV != nil && s.KV.Redis == "", s.Messages != nil && s.Messages.URL == ""
}

// Begin is the first call. Its result says what confines the program.
const Begin = driver.Method[Settings, []string]("begin")

// The methods of the key-value store.
const (
	KVGet    = driver.Method[string, kv.Entry]("kv.get")
	KVPlain  = driver.Method[[]string, PlainEntry]("kv.plain")
	KVSet    = driver.Method[KVChange, kv.Entry]("kv.set")
	KVDelete = driver.Method[kv.Change, bool]("kv.delete")
	KVList   = driver.Method[KVListing, KVPage]("kv.list")
	KVSize   = driver.Method[string, int64]("kv.size")  // of a part: the bytes of its names and values
	KVForget = driver.Method[string, bool]("kv.forget") // of a part: removes entries; true: there may be more
	KVPing   = driver.Method[driver.None, driver.None]("kv.ping")
)

// PlainEntry is a string of another program, if it was found.
type PlainEntry struct {
	kv.Entry
	Found bool
}

// KVChange sets an entry.
type KVChange struct {
	kv.Change
	Value string
	TTL   time.Duration // 0: none
}

// KVListing asks for a page of entries.
type KVListing struct {
	Prefix, After string
	Limit         int
}

// KVPage is a page of entries.
type KVPage struct {
	Entries []kv.Entry
	Next    string
}

// The methods of the messages.
const (
	Publish      = driver.Method[messages.Message, uint64]("messages.publish")
	Read         = driver.Method[messages.Reading, messages.Found]("messages.read")
	MessagesSize = driver.Method[string, int64]("messages.size") // of a stream: the bytes of its messages
	Forget       = driver.Method[messages.Forgotten, driver.None]("messages.forget")
	MessagesPing = driver.Method[driver.None, driver.None]("messages.ping")
)

// The methods of the object store.
const (
	ObjectGet    = driver.Method[string, objects.Content]("objects.get")
	ObjectPut    = driver.Method[objects.Put, string]("objects.put")
	ObjectDelete = driver.Method[objects.Delete, driver.None]("objects.delete")
	ObjectList   = driver.Method[objects.Listing, objects.Page]("objects.list")
	ObjectPing   = driver.Method[driver.None, driver.None]("objects.ping")
)

// The methods of the SQL store on a server.
const (
	SQLDo   = driver.Method[Statement, engine.Reply]("sql.do")
	SQLPing = driver.Method[driver.None, driver.None]("sql.ping")
)

// Statement is a request of an agent that has a role.
type Statement struct {
	Role    string
	Request engine.Request
}

// SendMail makes one attempt to send a letter. nil says that it was taken.
const SendMail = driver.Method[notify.Letter, *notify.Failure]("mail.send")
