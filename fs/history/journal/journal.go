// Package journal is the format of the journals of a history: frames of records, each with a checksum.
package journal

import (
	"cmp"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// Kind is the kind of a record.
type Kind uint8

// The kinds of record. Those up to Returned are written before the change.
const (
	Begins     Kind = iota + 1 // the first of a journal: Label, Note
	Made                       // a new object at Path; Settled has its identity. An undo made it for the directory Other, which was removed
	Linked                     // Object has the new name Path, and had To
	Removed                    // Object has lost the name Path
	Moved                      // Object is moved from Path to To, where it replaces Other
	Exchanged                  // Object at Path and Other at To exchange their names
	Content                    // Object at Path is about to be written
	Attributes                 // Object at Path is about to get other attributes, or other names in it
	Restored                   // the kept file To, of any generation, gets the name Path again
	Returned                   // Object at Path becomes the kept file To again
	Settled                    // the record Of has happened; of Made, the object is Object, and a file is as Attr says
	Void                       // the record Of has not happened
	Written                    // Object was closed after it was open for writing: Attr; nil: it is open for writing again
	Lost                       // a change of Path was not kept: Why
	Ended                      // an undo is complete
	Shown                      // a layer shows other objects of its base at Path, and at To: Data. Its Object moves with that; zero: none
)

// Flags of a record.
const (
	Born      = 1 << iota // the generation created Object, or Other if the record is Moved: nothing is kept
	Directory             // Object is a directory, or Other if the record is Moved
	Inline                // Data is the content, else the kept file is
	Names                 // Attributes: names in the directory change, and so its times
	Unnamed               // Content, Attributes: Object had no name but in the history; Path was its last one
	Twin                  // Removed: the generation has given Object the name, and Object has others: nothing is kept. Moved: a Shown goes with it
	Blocks                // Content: the kept file has the blocks that were replaced
	Busy                  // Content, Attributes: a client of the view had it open for writing before: how that leaves it is not known
)

// Record is an entry of a journal.
type Record struct {
	Seq     uint64 // the time in nanoseconds, or the next free number; unique in a history
	Kind    Kind
	Flags   uint8
	PID     uint32
	Program string
	Path    string // relative to the scope
	To      string // Made, Removed: Object is a layer's copy of this file of its base, which Path shows without the copy
	Object  beneath.FileID
	Other   beneath.FileID
	Kept    uint32 // the number of the kept file; 0: none
	Why     string // why nothing is kept
	Of      uint64 // Settled, Void: the record; of an undo: the record that it inverts
	Attr    *Attr  // before the change; Written: after it, nil: not known; Removed with To: of To; Moved, of an undo: what Path shows
	At      int64  // the offset in the journal, which its reader sets
	Data    []byte // Inline: the content; Begins: the Header; Shown: of the layer; Moved, Restored: hashed entries of git's index (Attr's)
}

// Time returns when the record was written.
func (r *Record) Time() time.Time { return time.Unix(0, int64(r.Seq)) }

// Attr has the attributes of an object that the history keeps.
type Attr struct {
	Mode       uint32              `json:"mode"`
	UID        uint32              `json:"uid"`
	GID        uint32              `json:"gid"`
	Size       int64               `json:"size,omitempty"`
	Atime      unix.StatxTimestamp `json:"atime,omitzero"`
	Mtime      unix.StatxTimestamp `json:"mtime,omitzero"`
	XAttrs     map[string][]byte   `json:"xattrs,omitzero"`      // nil: not read; empty: none
	Capability []byte              `json:"capability,omitempty"` // of a file: see CapabilityOf
}

// Capability is the extended attribute that has the capabilities of a file: capabilities(7). The kernel removes it when the file is
// written.
const Capability = "security.capability"

// CapabilityOf returns the capabilities of a file; nil if it has none.
func CapabilityOf(f beneath.File) []byte {
	value := make([]byte, 24) // struct vfs_ns_cap_data of linux/capability.h
	n, err := f.Getxattr(Capability, value)
	if err != nil || n == 0 {
		return nil
	}
	return value[:n]
}

// AttrOf returns the attributes of an object, without the extended ones.
func AttrOf(st *beneath.Stat) *Attr {
	return &Attr{Mode: uint32(st.Mode), UID: st.Uid, GID: st.Gid, Size: int64(st.Size), Atime: st.Atime, Mtime: st.Mtime}
}

// Same reports whether a file has the content that it had with the attributes b, as far as they tell.
func (a *Attr) Same(b *Attr) bool {
	return a.Size == b.Size && a.Mtime.Sec == b.Mtime.Sec && a.Mtime.Nsec == b.Mtime.Nsec
}

// Times returns the times, for utimensat.
func (a *Attr) Times() (atime, mtime unix.Timespec) {
	return unix.Timespec{Sec: a.Atime.Sec, Nsec: int64(a.Atime.Nsec)}, unix.Timespec{Sec: a.Mtime.Sec, Nsec: int64(a.Mtime.Nsec)}
}

// HeadSize is the size of what precedes a record: its length and its CRC-32C.
const HeadSize = 8

// MaxRecord bounds a record, in bytes.
const MaxRecord = 1 << 20

// checksum returns the CRC-32C. The table is made when it is used first: a start of a view does without.
func checksum(text []byte) uint32 { return crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)) }

// Coder writes or reads the records of one journal, in order. A path is written without what it shares with the one before: a
// journal has each name of a deep directory once. The zero Coder begins anywhere when it writes, and at the begin when it reads; a
// nil one reads any record without its paths.
type Coder struct{ last string }

// shares marks a record whose paths are written so. Histories of older builds have others.
const shares = 0x80

// cut returns how much of a path is that of the one before, and the rest.
func (c *Coder) cut(path string) (shared int, rest string) {
	for shared < len(c.last) && shared < len(path) && c.last[shared] == path[shared] {
		shared++
	}
	return shared, path[shared:]
}

// path reads what cut has written.
func (c *Coder) path(d *decoder, shared bool) string {
	n := uint64(0)
	if shared {
		n = d.number()
	}
	rest := d.text()
	if c == nil {
		return ""
	}
	if n > uint64(len(c.last)) {
		d.bad = true
		return ""
	}
	return c.last[:n] + rest
}

// Append appends the frame of a record to a journal in memory.
func (c *Coder) Append(b []byte, r *Record) []byte {
	start := len(b)
	b = append(b, make([]byte, HeadSize)...)
	b = append(b, byte(r.Kind)|shares, r.Flags)
	for _, n := range []uint64{
		r.Seq, uint64(r.PID), r.Object.Dev, r.Object.Ino, uint64(r.Object.Birth), r.Other.Dev, r.Other.Ino, uint64(r.Other.Birth),
		uint64(r.Kept), r.Of,
	} {
		b = binary.AppendUvarint(b, n)
	}
	b = appendText(b, r.Program)
	for _, path := range []string{r.Path, r.To} {
		shared, rest := c.cut(path)
		b = appendText(binary.AppendUvarint(b, uint64(shared)), rest)
		c.last = cmp.Or(r.Path, c.last)
	}
	b = appendText(appendText(b, r.Why), string(r.Data))
	b = r.Attr.append(b)
	seal(b[start:])
	return b
}

// seal completes a frame, which has room for the length and the checksum of its text.
func seal(frame []byte) {
	text := frame[HeadSize:]
	binary.LittleEndian.PutUint32(frame, uint32(len(text)))
	binary.LittleEndian.PutUint32(frame[4:], checksum(text))
}

// cutFrame returns the text of the next frame, which has at most so many bytes.
func cutFrame(b []byte, most int) (text, rest []byte, err error) {
	if len(b) < HeadSize {
		return nil, nil, ErrTorn
	}
	size := int(binary.LittleEndian.Uint32(b))
	if size > most || size > len(b)-HeadSize {
		return nil, nil, ErrTorn
	}
	text, rest = b[HeadSize:HeadSize+size], b[HeadSize+size:]
	if checksum(text) != binary.LittleEndian.Uint32(b[4:]) || size < 2 {
		return nil, nil, ErrTorn
	}
	return text, rest, nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func (a *Attr) append(b []byte) []byte {
	if a == nil {
		return append(b, 0)
	}
	b = append(b, 1)
	for _, n := range []uint64{
		uint64(a.Mode), uint64(a.UID), uint64(a.GID), uint64(a.Size),
		uint64(a.Atime.Sec), uint64(a.Atime.Nsec), uint64(a.Mtime.Sec), uint64(a.Mtime.Nsec),
	} {
		b = binary.AppendUvarint(b, n)
	}
	if a.XAttrs == nil {
		b = binary.AppendUvarint(b, 0)
	} else {
		b = binary.AppendUvarint(b, uint64(len(a.XAttrs))+1)
	}
	for name, value := range a.XAttrs {
		b = appendText(appendText(b, name), string(value))
	}
	if a.Capability != nil { // older histories end here
		b = appendText(b, string(a.Capability))
	}
	return b
}

// ErrTorn is the error of a journal that ends within a record, or is damaged there.
var ErrTorn = errors.New("the journal is damaged")

// Text returns a record as an entry of a Log.
func (r *Record) Text() []byte { return new(Coder).Append(nil, r)[HeadSize:] }

// Cut decodes the next record of a journal. It returns ErrTorn if the journal ends within the record, or is damaged there.
func (c *Coder) Cut(b []byte) (r *Record, rest []byte, err error) {
	text, rest, err := cutFrame(b, MaxRecord)
	if err == nil {
		r, err = c.Decode(text)
	}
	return r, rest, err
}

// Decode is Cut of a record without its frame.
func (c *Coder) Decode(text []byte) (r *Record, err error) {
	d := decoder{rest: text[2:]}
	r = &Record{Kind: Kind(text[0] &^ shares), Flags: text[1]}
	r.Seq, r.PID = d.number(), uint32(d.number())
	r.Object, r.Other = d.id(), d.id()
	r.Kept, r.Of = uint32(d.number()), d.number()
	r.Program = d.text()
	r.Path = c.path(&d, text[0]&shares != 0)
	if c != nil {
		c.last = cmp.Or(r.Path, c.last)
	}
	r.To = c.path(&d, text[0]&shares != 0)
	r.Why, r.Data = d.text(), []byte(d.text())
	r.Attr = d.attr()
	if d.bad {
		return nil, ErrTorn
	}
	return r, nil
}

// decoder decodes the fields of a record. After an error all further fields are zero.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) number() uint64 {
	n, size := binary.Uvarint(d.rest)
	if size <= 0 {
		d.bad, d.rest = true, nil
		return 0
	}
	d.rest = d.rest[size:]
	return n
}

func (d *decoder) text() string {
	n := d.number()
	if n > uint64(len(d.rest)) {
		d.bad, d.rest = true, nil
		return ""
	}
	s := string(d.rest[:n])
	d.rest = d.rest[n:]
	return s
}

func (d *decoder) id() beneath.FileID {
	return beneath.FileID{Dev: d.number(), Ino: d.number(), Birth: int64(d.number())}
}

func (d *decoder) attr() *Attr {
	if len(d.rest) == 0 {
		d.bad = true
		return nil
	}
	some := d.rest[0] != 0
	if d.rest = d.rest[1:]; !some {
		return nil
	}
	a := &Attr{Mode: uint32(d.number()), UID: uint32(d.number()), GID: uint32(d.number()), Size: int64(d.number())}
	a.Atime = unix.StatxTimestamp{Sec: int64(d.number()), Nsec: uint32(d.number())}
	a.Mtime = unix.StatxTimestamp{Sec: int64(d.number()), Nsec: uint32(d.number())}
	n := d.number()
	if n > 0 {
		a.XAttrs = map[string][]byte{}
	}
	for ; n > 1 && !d.bad; n-- {
		name := d.text()
		a.XAttrs[name] = []byte(d.text())
	}
	if !d.bad && len(d.rest) > 0 {
		a.Capability = []byte(d.text())
	}
	return a
}
