package signing

// Form is one of the writings of a JSON tree that a signature may be over (AM-14). Each is one-to-one, so which
// of them a peer signed makes no difference to what it said.
type Form uint8

// The forms, in the order in which they are tried.
const (
	JCS   Form = iota // RFC 8785; the only one we sign
	Plain             // keys by code point, number tokens as written, minimal escapes
	ES                // as JCS, but integer-like keys first, in numeric order: what ECMAScript objects do
	ASCII             // as Plain, everything but printable ASCII escaped: Python's default
	HTML              // as Plain, with < > & U+2028 U+2029 escaped: Go's default

	Python // as ASCII, with numbers as Python writes them anew: MoltSpeak's only form (MS-13); never tried for AgentMesh
)

var formNames = [...]string{"jcs", "plain", "es", "ascii", "html", "python"}

func (f Form) String() string { return formNames[f] }

// Forms returns the closed list of AM-14 in the order in which forms are tried.
func Forms() []Form { return []Form{JCS, Plain, ES, ASCII, HTML} }
