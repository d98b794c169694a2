// Package site has the parts of a directory's public pages that need no cards: who runs the directory, and QR codes.
package site

// Operator is what the pages say about the operator of a directory. Everybody reads it.
type Operator struct {
	Name    string // title of the pages
	Contact string // how to reach the operator; "" shows nothing
}
