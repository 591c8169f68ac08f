package audit

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/segment"
	"github.com/scopefs/scopefs/audit/tree"
	"github.com/scopefs/scopefs/internal/durable"
)

// A place is the end of what is on disk.
type place struct {
	segment int
	size    int64
}

// seal extends the tree by the lines that are on disk, and signs its head. It reads the lines from their files and holds
// neither mu nor the log's lock, so that no append waits for it. While another process seals, it does nothing, unless the
// log is being closed.
func (s *store) seal(closing bool) error {
	s.mu.Lock()
	to := s.synced
	s.mu.Unlock()
	if to == s.sealed || to.segment == 0 {
		return nil
	}
	root, err := os.OpenRoot(s.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	w := sealer{root: root}
	defer w.close()
	switch done, err := w.seal(to, closing); {
	case err != nil:
		return fmt.Errorf("seal log: %w", err)
	case done:
		s.sealed = to
	}
	if w.renewed != "" {
		s.note(OutcomeLost, w.renewed)
	}
	return nil
}

// A sealer extends the tree of a log once. It holds flock(2) on the file tree.
type sealer struct {
	root    *os.Root
	blocks  *os.File // tree
	boot    uint64
	segment int
	at      tree.Position
	side    *os.File // the segment's file of the tree
	renewed string   // why a new tree or a new key was begun
	hints   []byte
	leaf    tree.Leaf
}

func (w *sealer) close() {
	for _, f := range []*os.File{w.blocks, w.side} {
		if f != nil {
			f.Close()
		}
	}
}

const openForWrite = os.O_RDWR | os.O_CREATE | unix.O_NOFOLLOW | unix.O_NONBLOCK

// A log that is closed waits this long while another process seals.
const (
	sealTime  = time.Second
	sealTries = 100
)

// seal hashes the lines up to a place, and reports whether it did so.
func (w *sealer) seal(to place, closing bool) (done bool, err error) {
	if w.blocks, err = w.root.OpenFile(segment.Tree, openForWrite, 0o600); err != nil {
		return false, err
	}
	for tries := 0; ; tries++ {
		err := segment.Lock(w.blocks, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return false, err
		}
		if !closing || tries == sealTries { // another process seals
			return false, nil
		}
		time.Sleep(sealTime / sealTries)
	}
	dir, err := w.root.Open(".")
	if err != nil {
		return false, err
	}
	w.boot = bootOf(dir)
	dir.Close()
	signer, err := w.key()
	if err != nil {
		return false, err
	}
	all, err := segment.List(w.root)
	if err != nil {
		return false, err
	}
	if err := w.resume(all); err != nil {
		return false, err
	}
	for _, seg := range all {
		if seg.Number < w.segment || seg.Number > to.segment {
			continue
		}
		if seg.Number > w.segment {
			if err := w.begin(seg.Number); err != nil {
				return false, err
			}
		}
		if err := w.hash(seg, to); err != nil {
			return false, err
		}
	}
	return true, w.head(signer)
}

// resume sets the position from the newest file of the tree that is whole. After a crash of the kernel only the first
// position of a file is known to be on disk. Without a file it begins a new tree at the first segment.
func (w *sealer) resume(all []segment.Segment) error {
	numbers, err := treeNumbers(w.root)
	if err != nil {
		return err
	}
	for _, n := range slices.Backward(numbers) {
		f, err := w.root.OpenFile(segment.TreeFile(n), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		start, now, err := segment.Positions(f)
		if err != nil { // the one before has the place, too
			f.Close()
			continue
		}
		if !sameBoot(now.Boot, w.boot) {
			now = start
		}
		w.segment, w.at, w.side = n, now, f
		return nil
	}
	info, err := w.blocks.Stat()
	if err == nil && info.Size() > 0 || len(numbers) > 0 {
		w.renewed = "the tree of the log was removed or damaged: a new one begins"
		err = cmp.Or(err, w.blocks.Truncate(0))
	}
	if err != nil || len(all) == 0 {
		return err
	}
	return w.begin(all[0].Number)
}

// treeNumbers returns the segments that have a file of the tree, in order.
func treeNumbers(root *os.Root) (numbers []int, err error) {
	entries, err := fs.ReadDir(root.FS(), ".")
	for _, entry := range entries {
		digits, ok := strings.CutSuffix(entry.Name(), segment.TreeSuffix)
		if n, err := strconv.Atoi(digits); ok && err == nil && n > 0 && entry.Name() == segment.TreeFile(n) {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, err
}

// begin makes the file of the tree for segment n, which begins where the segment before it ended. The file and the
// blocks are on disk before begin returns.
func (w *sealer) begin(n int) error {
	w.at.Offset, w.at.Boot = 0, w.boot
	f, err := w.root.OpenFile(segment.TreeFile(n), openForWrite|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if w.side != nil {
		w.side.Close()
	}
	w.segment, w.side = n, f
	if _, err := f.WriteAt(w.at.Encode(), 0); err != nil {
		return err
	}
	return errors.Join(w.blocks.Sync(), f.Sync(), durable.Sync(w.root.Open(".")))
}

// hash adds the lines of the segment after the position, up to a place or, in an earlier segment, to its end.
func (w *sealer) hash(seg segment.Segment, to place) error {
	limit := int64(-1)
	if seg.Number == to.segment {
		if limit = to.size; limit <= w.at.Offset {
			return nil
		}
	}
	start, _, err := segment.Positions(w.side)
	if err != nil {
		return err
	}
	from := w.at.Tree.Size
	w.hints = w.hints[:0]
	err = segment.Lines(w.root, seg, w.at.Offset, limit, func(line []byte) error {
		w.at.Offset += int64(len(line))
		return w.add(line)
	})
	if errors.Is(err, fs.ErrNotExist) { // removed by another program, which the log has recorded
		err = nil
	}
	if err == nil && w.at.Tree.Size > from {
		_, err = w.side.WriteAt(w.hints, hintAt(start, from))
	}
	if err == nil {
		w.at.Boot = w.boot
		_, err = w.side.WriteAt(w.at.Encode(), tree.PositionSize)
	}
	return err
}

// hintAt returns where the hint of a line is in the file of its segment.
func hintAt(start tree.Position, index int64) int64 {
	return 2*tree.PositionSize + (index-start.Tree.Size)*tree.HintSize
}

func (w *sealer) add(line []byte) error {
	leaf := w.leaf.Hash(segment.Unended(line))
	w.hints = append(w.hints, leaf[:tree.HintSize]...)
	segment.Count(&w.at.Counts, segment.Value(line, "event"), line)
	if block, complete := w.at.Tree.Add(leaf); complete {
		_, err := w.blocks.WriteAt(block[:], (w.at.Tree.Size/tree.BlockLines-1)*tree.HashSize)
		return err
	}
	return nil
}

// secretName is the file of the log's private key.
const secretName = "key"

// key returns the log's key, and makes it if the log has none.
func (w *sealer) key() (note.Signer, error) {
	text, err := w.root.ReadFile(secretName)
	if err == nil {
		return note.NewSigner(string(text))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if _, err := w.root.Lstat(segment.Head); err == nil {
		w.renewed = "the key of the log was removed: a new one signs from now on"
	}
	var id [8]byte
	_, _ = rand.Read(id[:])
	private, public, err := note.GenerateKey(rand.Reader, tree.OriginPrefix+hex.EncodeToString(id[:]))
	if err != nil {
		return nil, err
	}
	if err := durable.Replace(w.root, segment.PublicKey, []byte(public+"\n"), durable.Options{Mode: 0o644}); err != nil {
		return nil, err
	}
	if err := durable.Replace(w.root, secretName, []byte(private), durable.Options{}); err != nil {
		return nil, err
	}
	return note.NewSigner(private)
}

// head signs the tree and replaces the last head, unless that is of the same size.
func (w *sealer) head(signer note.Signer) error {
	before, err := w.root.ReadFile(segment.Head)
	if err == nil && bytes.HasPrefix(before, fmt.Appendf(nil, "%s\n%d\n", signer.Name(), w.at.Tree.Size)) {
		return nil
	}
	h := tree.Head{Size: w.at.Tree.Size, Root: w.at.Tree.Root(), Counts: w.at.Counts}
	signed, err := h.Sign(signer)
	if err != nil {
		return err
	}
	// A head is signed anew after a crash of the kernel.
	return durable.Replace(w.root, segment.Head, signed, durable.Options{Mode: 0o644, Unsynced: true})
}
