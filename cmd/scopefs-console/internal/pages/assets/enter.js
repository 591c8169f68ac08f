document.getElementById("enter").requestSubmit();
