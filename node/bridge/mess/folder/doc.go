// Package folder is the form of MESS as files (MESSE-AF): a directory, which may be a git repository, of thread folders by state.
//
// [Mirror] keeps the threads of an exchange in such a directory and takes in what other tools write there. [ImportDirectory]
// takes over the threads of a directory once, and [Export] writes one thread. Everything goes through one os.Root, so no name leads
// out of the directory.
package folder
