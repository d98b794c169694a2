package site

import (
	"fmt"
	"strings"

	"rsc.io/qr"
)

// QR is a QR code.
type QR struct {
	Size int    // in modules, including the quiet zone
	Path string // of an SVG
	Text string // for a terminal, dark on light
}

const quietZone = 4 // modules, as the standard requires

// NewQR returns the code of a text, or nil if the text is too long for a code that a phone can read.
func NewQR(text string) *QR {
	if len(text) > 512 {
		return nil
	}
	code, err := qr.Encode(text, qr.M)
	if err != nil {
		return nil
	}
	var path []byte
	for y := range code.Size {
		for x := 0; x < code.Size; x++ {
			run := 0
			for x+run < code.Size && code.Black(x+run, y) {
				run++
			}
			if run == 0 {
				continue
			}
			path = fmt.Appendf(path, "M%d %dh%dv1h-%dz", x+quietZone, y+quietZone, run, run)
			x += run
		}
	}
	return &QR{code.Size + 2*quietZone, string(path), textQR(code)}
}

// textQR draws a code with two modules in each character. It draws the light ones, because most terminals are dark.
func textQR(code *qr.Code) string {
	const quiet = 2 // modules, which is enough on a screen
	var text strings.Builder
	for y := -quiet; y < code.Size+quiet; y += 2 {
		for x := -quiet; x < code.Size+quiet; x++ {
			switch upper, lower := code.Black(x, y), code.Black(x, y+1); {
			case upper && lower:
				text.WriteByte(' ')
			case upper:
				text.WriteString("▄")
			case lower:
				text.WriteString("▀")
			default:
				text.WriteString("█")
			}
		}
		text.WriteByte('\n')
	}
	return text.String()
}
