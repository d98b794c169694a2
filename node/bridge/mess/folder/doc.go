// Package folder is the file form of MESS (MESSE-AF): a directory of thread folders by state, which may be a git
// repository.
//
// [Mirror] keeps the threads of an exchange in such a directory and applies what other tools write there.
// [ImportDirectory] adopts the threads of a directory once, and [Export] writes one thread. All access goes through one
// os.Root, so no name leads out of the directory.
package folder
