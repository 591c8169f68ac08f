package tree

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
)

// signatures are the beginnings of contents by type: https://mimesniff.spec.whatwg.org. A dot stands for any byte.
var signatures = []struct{ begin, mime string }{
	{"%PDF-", "application/pdf"}, {"%!PS-Adobe-", "application/postscript"},
	{"\xfe\xff..", "text/plain"}, {"\xff\xfe..", "text/plain"}, {"\xef\xbb\xbf.", "text/plain"},
	{"\x00\x00\x01\x00", "image/x-icon"}, {"\x00\x00\x02\x00", "image/x-icon"}, {"BM", "image/bmp"},
	{"GIF87a", "image/gif"}, {"GIF89a", "image/gif"},
	{"RIFF....WEBPVP", "image/webp"}, {"\x89PNG\r\n\x1a\n", "image/png"}, {"\xff\xd8\xff", "image/jpeg"},
	{"FORM....AIFF", "audio/aiff"}, {"ID3", "audio/mpeg"}, {"OggS\x00", "application/ogg"}, {"MThd\x00\x00\x00\x06", "audio/midi"},
	{"RIFF....AVI ", "video/avi"}, {"RIFF....WAVE", "audio/wave"}, {"\x1aE\xdf\xa3", "video/webm"},
	{strings.Repeat(".", 34) + "LP", "application/vnd.ms-fontobject"}, {"\x00\x01\x00\x00", "font/ttf"}, {"OTTO", "font/otf"},
	{"ttcf", "font/collection"}, {"wOFF", "font/woff"}, {"wOF2", "font/woff2"},
	{"\x1f\x8b\x08", "application/x-gzip"}, {"PK\x03\x04", "application/zip"}, {"Rar!\x1a\x07\x00", "application/x-rar-compressed"},
	{"Rar!\x1a\x07\x01\x00", "application/x-rar-compressed"}, {"\x00asm", "application/wasm"},
}

// tags begin HTML.
var tags = []string{"!DOCTYPE HTML", "HTML", "HEAD", "SCRIPT", "IFRAME", "H1", "DIV", "FONT", "TABLE", "A", "STYLE",
	"TITLE", "B", "BODY", "BR", "P", "!--"}

// mediaType returns the MIME type of a content, without parameters, as net/http's DetectContentType does: that package
// would be most of this program.
func mediaType(b []byte) string {
	b = b[:min(len(b), 512)]
	text := bytes.TrimLeft(b, "\t\n\f\r ")
	switch {
	case isHTML(text):
		return "text/html"
	case bytes.HasPrefix(text, []byte("<?xml")):
		return "text/xml"
	}
	for _, s := range signatures {
		if begins(b, s.begin) {
			return s.mime
		}
	}
	switch {
	case isMP4(b):
		return "video/mp4"
	case bytes.ContainsFunc(text, func(r rune) bool { return r <= 8 || r == 11 || r >= 14 && r <= 26 || r >= 28 && r <= 31 }):
		return "application/octet-stream"
	}
	return "text/plain"
}

func begins(b []byte, begin string) bool {
	if len(b) < len(begin) {
		return false
	}
	for i := range len(begin) {
		if begin[i] != '.' && begin[i] != b[i] {
			return false
		}
	}
	return true
}

func isHTML(b []byte) bool {
	return slices.ContainsFunc(tags, func(tag string) bool {
		n := len(tag) + 1
		return len(b) > n && b[0] == '<' && strings.EqualFold(string(b[1:n]), tag) && (b[n] == ' ' || b[n] == '>')
	})
}

func isMP4(b []byte) bool {
	if len(b) < 12 || string(b[4:8]) != "ftyp" {
		return false
	}
	size := int(binary.BigEndian.Uint32(b))
	if size > len(b) || size%4 != 0 {
		return false
	}
	for at := 8; at < size; at += 4 {
		if at != 12 && string(b[at:at+3]) == "mp4" {
			return true
		}
	}
	return false
}
