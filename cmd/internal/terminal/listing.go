package terminal

import "github.com/agentmesh/agentmesh/node/owner"

// DescribeListing describes the registration of the node in a directory on one line, without its hint.
func DescribeListing(l owner.Listing) string {
	text := l.Directory + ": " + string(l.State)
	if !l.Expires.IsZero() {
		text += ", expires " + FormatTime(l.Expires)
	}
	if l.Error != "" {
		text += ", last error: " + l.Error
	}
	return Clean(text)
}
