package tree

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/mod/sumdb/note"
)

// Kept says what a text has beside the heads of a log.
type Kept struct {
	Heads  int // of the log
	Others int // of other logs
	Cut    int // of the log, which end too early: the disk was full, or the writer was killed
}

// LinePrefix is before a signed head as one line: base64 of it follows, to the next character that is not of base64.
const LinePrefix = "checkpoint="

var asLine = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(LinePrefix + `([A-Za-z0-9+/]+={0,2})`) })

// AsLine returns a signed head as one line, for media that keep lines, such as syslog.
func AsLine(signed []byte) string { return LinePrefix + base64.StdEncoding.EncodeToString(signed) }

// The limits of a text with heads, in bytes and lines.
const (
	maxKeptLine  = 64 << 10 // the rest of a longer one is not looked at
	maxHeadLines = 32
	maxOwnSig    = 4 + 64 // bytes of the signature of a log: the hash of its key, and Ed25519's
)

// EachHead finds the heads that a text has of the log of a key. It calls found with each head, the line on which it begins, and its
// text with all signatures; it has checked the log's signature alone. A head may be indented, or AsLine's, and any text may stand
// between heads. EachHead returns an error for a head of this log that the key has not signed.
func EachHead(text io.Reader, key note.Verifier, found func(line int64, h Head, signed string)) (Kept, error) {
	s := headScanner{key: key, found: found}
	r := bufio.NewReaderSize(text, maxKeptLine)
	for {
		line, more, err := r.ReadLine()
		if err != nil {
			err = errors.Join(s.end(), notEOF(err))
			return s.kept, err
		}
		s.at++
		err = s.line(string(line))
		for more && err == nil {
			_, more, err = r.ReadLine()
		}
		if err = notEOF(err); err != nil {
			return s.kept, err
		}
	}
}

func notEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// headScanner is one call of EachHead.
type headScanner struct {
	key   note.Verifier
	found func(int64, Head, string)
	kept  Kept
	at    int64 // the line

	lines []string // of what may be a head; none: no head has begun
	from  int64    // its first line
	body  int      // its lines before the empty one; 0: it has not come
}

func (s *headScanner) line(line string) error {
	if found := asLine().FindStringSubmatch(line); found != nil {
		err := s.end()
		signed, errCoded := base64.StdEncoding.DecodeString(found[1])
		if errCoded != nil { // its end is missing
			signed, _ = base64.StdEncoding.DecodeString(found[1][:len(found[1])/4*4])
		}
		for _, one := range strings.Split(string(signed), "\n") {
			err = errors.Join(err, s.part(one))
		}
		return errors.Join(err, s.end())
	}
	return s.part(strings.TrimSpace(line))
}

// part takes a line of a head, or of other text.
func (s *headScanner) part(line string) error {
	switch {
	case isOrigin(line), len(s.lines) == maxHeadLines:
		if err := s.end(); err != nil || !isOrigin(line) {
			return err
		}
		s.from = s.at
	case s.lines == nil:
		return nil
	case line == "" && s.body == 0:
		s.body = len(s.lines)
	case s.body > 0 && !strings.HasPrefix(line, "— "):
		return s.end()
	}
	s.lines = append(s.lines, line)
	return nil
}

// isOrigin reports whether a line is the name of a log.
func isOrigin(line string) bool {
	id, ok := strings.CutPrefix(line, OriginPrefix)
	return ok && id != "" && len(line) < 256 && !strings.ContainsAny(id, " +:")
}

// OriginPrefix begins the name of each log.
const OriginPrefix = "scopefs.log/"

// end ends what may be a head.
func (s *headScanner) end() error {
	lines, body := s.lines, s.body
	s.lines, s.body = nil, 0
	if len(lines) < 2 {
		return nil
	}
	if _, err := strconv.ParseUint(lines[1], 10, 63); err != nil {
		return nil // the name alone
	}
	if lines[0] != s.key.Name() {
		s.kept.Others++
		return nil
	}
	if body == 0 {
		s.kept.Cut++
		return nil
	}
	own := lines[: body+1 : body+1] // without signatures of others, whose end may be missing
	for _, line := range lines[body+1:] {
		if strings.HasPrefix(line, "— "+s.key.Name()+" ") {
			own = append(own, line)
		}
	}
	h, err := OpenHead([]byte(strings.Join(own, "\n")+"\n"), s.key)
	switch {
	case err == nil:
		s.kept.Heads++
		s.found(s.from, h, strings.Join(lines, "\n")+"\n")
	case !s.signed(own[body+1:]):
		s.kept.Cut++
	default:
		return fmt.Errorf("line %d: a head of this log is not signed by the log's key %s: %w", s.from, s.key.Name(), err)
	}
	return nil
}

// signed reports whether one of the lines is a whole signature in the log's name.
func (s *headScanner) signed(lines []string) bool {
	for _, line := range lines {
		coded, ok := strings.CutPrefix(line, "— "+s.key.Name()+" ")
		sig, err := base64.StdEncoding.DecodeString(coded)
		if ok && (err == nil && len(sig) == maxOwnSig || len(coded) >= base64.StdEncoding.EncodedLen(maxOwnSig)) {
			return true
		}
	}
	return false
}
