package site

import (
	"fmt"

	"rsc.io/qr"
)

// QR is a QR code as an SVG path.
type QR struct {
	Size int // in modules, including the quiet zone
	Path string
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
	return &QR{code.Size + 2*quietZone, string(path)}
}
