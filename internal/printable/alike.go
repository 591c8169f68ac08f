package printable

import (
	"strings"
	"unicode"
)

// alike has letters of other scripts with the picture of ASCII letters, by script. It is a part of confusables.txt of Unicode
// Technical Standard #39.
var alike = []struct {
	script  *unicode.RangeTable
	letters string
}{
	{unicode.Cyrillic, "АВЕЅІЈКМНОРСТУХаеѕіјкорсухԁһԛԝӏҮүґѵѴԌ"},
	{unicode.Greek, "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧαινορυγηωκϲϳ"},
	{unicode.Armenian, "ՍՕՏԼսօոցհզյ"},
	{unicode.Cherokee, "ᎠᎡᎢᎥᎪᎫᎬᎳᎷᎻᏀᏃᏎᏒᏔᏙᏚᏞᏟᏢᏦᏧᏴ"},
	{unicode.Coptic, "ⲎⲒⲔⲘⲚⲞⲢⲤⲦⲨⲬⲟⲣⲥⲭ"},
	{unicode.Lisu, "ꓐꓑꓓꓖꓗꓙꓚꓜꓝꓟꓠꓡꓢꓣꓦꓧꓪꓫꓬꓮꓰꓲꓳꓴ"},
}

// twins are characters with the picture of ASCII ones that no language needs: letters for sounds, and marks like a slash, a colon,
// a semicolon, a period and a bar.
const twins = "ɑɡɩǀǃ∕⁄⧸⧵∖＼／․．꞉∶\u037e∣"

// maxMarks limits the marks above and below a letter: more would cover other lines.
const maxMarks = 2

// crosses reports whether a mark goes through or around its letter, and so hides it.
func crosses(r rune) bool {
	return r >= 0x334 && r <= 0x338 || r >= 0x20d2 && r <= 0x20ef || unicode.Is(unicode.Me, r)
}

// styled reports whether a character is an ASCII letter or digit in another style: wide, bold, a number of Rome.
func styled(r rune) bool {
	return r >= 0x1d400 && r <= 0x1d7ff || r >= 0x2160 && r <= 0x217f || r >= 0xff10 && r <= 0xff5a &&
		(unicode.IsLetter(r) || unicode.IsDigit(r))
}

// deceivers returns the places, in bytes, of the characters of a text that look like other ones, or cover those beside them: letters
// of another script in a word that has ASCII letters, or in a text with no other letters of their script, and marks without a
// letter. nil: none.
func deceivers(s string) map[int]bool {
	if strings.IndexFunc(s, func(r rune) bool { return r > unicode.MaxLatin1 }) < 0 {
		return nil
	}
	found := map[int]bool{}
	clear := make([]bool, len(alike)) // the text has letters of the script that are like no others
	type letter struct{ at, script int }
	var all, word []letter // that are alike
	latin, digits, scripts := false, []int(nil), 0
	end := func() {
		if latin || scripts&(scripts-1) != 0 {
			for _, l := range word {
				found[l.at] = true
			}
		} else {
			all = append(all, word...)
		}
		if latin {
			for _, at := range digits {
				found[at] = true
			}
		}
		latin, digits, scripts, word = false, nil, 0, nil
	}
	marks, base := 0, false
	for at, r := range s {
		if unicode.Is(unicode.Mn, r) || unicode.Is(unicode.Me, r) {
			if marks++; !base || marks > maxMarks || crosses(r) {
				found[at] = true
			}
			continue
		}
		marks, base = 0, unicode.IsLetter(r) || unicode.Is(unicode.Mc, r)
		switch {
		case r < 0x80 && unicode.IsLetter(r):
			latin = true
		case strings.ContainsRune(twins, r) || styled(r):
			found[at] = true
		case r >= 0x80 && unicode.IsDigit(r):
			digits = append(digits, at)
		case !base && !unicode.IsDigit(r) && r != '_':
			end()
		default:
			for i, a := range alike {
				if !unicode.Is(a.script, r) {
					continue
				}
				if scripts |= 1 << i; strings.ContainsRune(a.letters, r) {
					word = append(word, letter{at, i})
				} else {
					clear[i] = true
				}
			}
		}
	}
	end()
	for _, l := range all {
		if !clear[l.script] {
			found[l.at] = true
		}
	}
	return found
}
