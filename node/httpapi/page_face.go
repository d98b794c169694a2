package httpapi

import (
	"crypto/sha256"
	"fmt"
	"html"
	"math"
	"strings"
	"unicode"

	template "github.com/DataDog/datadog-agent/pkg/template/html"
)

// facePoints are the points of a face, clockwise, as the beginnings of paths in SVG.
var facePoints = func() (points [12]string) {
	for i := range points {
		sin, cos := math.Sincos(2 * math.Pi * float64(i) / float64(len(points)))
		points[i] = fmt.Sprintf("M%.1f %.1fh0", 16+12.5*sin, 16-12.5*cos)
	}
	return points
}()

// pageFace draws the face of an agent: a disc whose two colors and pattern come from its id, which is derived from its
// key, and the first letter of its name. Another agent with the same name has another face. The name stands beside it,
// so a screen reader skips it, and the letter, which the style draws, is no part of a copied text.
func pageFace(id, name any) template.HTML {
	sum := sha256.Sum256([]byte(textOf(id)))
	hue, pattern := (int(sum[0])<<8+int(sum[1]))%360, int(sum[2])<<8+int(sum[3])
	var ring strings.Builder
	for i, point := range facePoints {
		if pattern>>i&1 == 1 {
			ring.WriteString(point)
		}
	}
	letter := ""
	if first := strings.IndexFunc(textOf(name), func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }); first >= 0 {
		for _, r := range textOf(name)[first:] {
			letter = html.EscapeString(string(unicode.ToUpper(r)))
			break
		}
	}
	return template.HTML(fmt.Sprintf(`<span class="face" aria-hidden="true" data-initial="%s"><svg viewBox="0 0 32 32" width="28" height="28"><circle cx="16" cy="16" r="16" fill="hsl(%d 45%% 30%%)"/>`+
		`<path d="%s" stroke="hsl(%d 80%% 75%%)" stroke-width="4" stroke-linecap="round"/></svg></span>`,
		letter, hue, ring.String(), (hue+30+int(sum[4]))%360))
}
